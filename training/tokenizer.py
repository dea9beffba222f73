"""The tokenizer of kimi-mini: byte-level BPE learned from the domains' own samples, and Kimi's special tokens.

    python -m training.tokenizer            writes models/kimi-mini/tokenizer.json and tokenizer_config.json

Every byte is a token, so every string can be written; digits are never merged, so numbers are read digit by digit.
The special tokens keep Kimi's names, flags and order: what Kimi has at 163584 + i, kimi-mini has at its base + i.
The same samples give the same file.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from training.shape import CONTEXT, MINI, SPECIAL_TOKENS

FOLDER = Path("models/kimi-mini")
FIRST_SPECIAL = MINI.vocabulary - SPECIAL_TOKENS
# Kimi's names at their distance from [BOS]; the ids between are reserved, as in Kimi's own vocabulary.
SPECIAL = {
    0: "[BOS]",
    1: "[EOS]",
    2: "<|im_end|>",
    3: "<|im_user|>",
    4: "<|im_assistant|>",
    6: "<|start_header_id|>",
    7: "<|end_header_id|>",
    9: "[EOT]",
    10: "<|im_system|>",
    11: "<|tool_calls_section_begin|>",
    12: "<|tool_calls_section_end|>",
    13: "<|tool_call_begin|>",
    14: "<|tool_call_argument_begin|>",
    15: "<|tool_call_end|>",
    17: "<|im_middle|>",
    18: "<|media_begin|>",
    19: "<|media_content|>",
    20: "<|media_end|>",
    21: "<|media_pad|>",
    22: "<think>",
    23: "</think>",
    24: "<|kimi_k25_video_placeholder|>",
    SPECIAL_TOKENS - 2: "[UNK]",
    SPECIAL_TOKENS - 1: "[PAD]",
}
IDS = {name: FIRST_SPECIAL + at for at, name in SPECIAL.items()}
# Not "special" in Kimi's vocabulary either: they must survive skip_special_tokens for the parsers of an engine.
PLAIN_TEXT = ("<|tool_call", "<think>", "</think>")
# Words with the space before them, one digit at a time, runs of signs, line ends, other space.
SPLIT = r" ?\p{L}[\p{L}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+|[\r\n]+|\s+(?![\S])|\s"
SAMPLE_CHARACTERS = 6_000_000  # BPE of a few thousand merges does not change with more


def is_special(name: str) -> bool:
    """Whether `skip_special_tokens` hides this token."""
    return not name.startswith(PLAIN_TEXT)


def names_in_order() -> list[str]:
    """Return every token of the special block, by id."""
    return [SPECIAL.get(at, f"<|reserved_token_{FIRST_SPECIAL + at}|>") for at in range(SPECIAL_TOKENS)]


def learn(texts: Iterator[str]) -> Tokenizer:
    """Learn the merges, then put the special block behind them."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes])  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=FIRST_SPECIAL,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
    )
    tokenizer.train_from_iterator(texts, trainer)
    return with_special_tokens(filled_up(tokenizer))


def filled_up(tokenizer: Tokenizer) -> Tokenizer:
    """Add unused tokens where the samples gave fewer merges than there are ids (tiny samples only)."""
    missing = FIRST_SPECIAL - tokenizer.get_vocab_size()
    names = [f"<|unused_{at}|>" for at in range(missing)]
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return tokenizer


def with_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Add the special block with Kimi's flags."""
    for name in names_in_order():
        token = AddedToken(name, special=is_special(name), normalized=False)
        (tokenizer.add_special_tokens if is_special(name) else tokenizer.add_tokens)([token])
    if any(tokenizer.token_to_id(name) != number for name, number in IDS.items()):
        raise AssertionError("the special tokens are not where Kimi has them")
    return tokenizer


def config() -> dict[str, Any]:
    """Return tokenizer_config.json: Kimi's, for a tokenizer without code of its own."""
    entry = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    names = {FIRST_SPECIAL + at: name for at, name in sorted(SPECIAL.items())}
    return {
        "added_tokens_decoder": {
            str(number): {"content": name, **entry, "special": is_special(name)} for number, name in names.items()
        },
        "additional_special_tokens": [
            name for name in names.values() if is_special(name) and name.startswith(("<|", "[EOT]"))
        ],
        "bos_token": "[BOS]",
        "clean_up_tokenization_spaces": False,
        "eos_token": "[EOS]",
        "extra_special_tokens": {},
        "model_max_length": CONTEXT,
        "pad_token": "[PAD]",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "[UNK]",
    }


@lru_cache(maxsize=1)
def load(folder: Path = FOLDER) -> Tokenizer:
    """Return the tokenizer as committed."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of texts; nothing is added before or after them."""
    return [found.ids for found in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]


def sample_texts(seed: int = 0, characters: int = SAMPLE_CHARACTERS) -> Iterator[str]:
    """Yield what the merges are learned from: every domain's samples as the model will see them."""
    from training import chat, mixture  # noqa: PLC0415 - both need a tokenizer first

    rng = random.Random(seed)
    for sample in mixture.samples(rng, characters=characters):
        yield from (piece.text for piece in chat.pieces(sample) if not piece.is_token)


def main() -> None:
    """Learn the tokenizer and write its two files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--characters", type=int, default=SAMPLE_CHARACTERS)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    learn(sample_texts(characters=arguments.characters)).save(str(arguments.folder / "tokenizer.json"), pretty=False)
    text = json.dumps(config(), indent=2, ensure_ascii=False)
    (arguments.folder / "tokenizer_config.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
