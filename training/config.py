"""config.json and its small companions: Kimi-K2.6's layout with kimi-mini's numbers.

    python -m training.config               writes them into models/kimi-mini

Kimi's own code reads `vt_*` and `media_placeholder_token_id`; transformers and vLLM read the same facts under names of
their own. Both sets are written. No `auto_map`: no code comes with this checkpoint.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from halfbyte.families.kimi_k25.geometry import Geometry, release_config
from training.shape import CONTEXT, MINI, NORM_EPS, ROPE, ROUTED_SCALE, VISION_HEADS
from training.tokenizer import FOLDER, IDS

# What transformers 4 wrote into every config, and so into Kimi-K2.6's; none of it decides anything.
WRITTEN_BY_TRANSFORMERS_4: dict[str, Any] = {
    "_name_or_path": "",
    "add_cross_attention": False,
    "attention_dropout": 0.0,
    "aux_loss_alpha": 0.001,
    "bad_words_ids": None,
    "begin_suppress_tokens": None,
    "chunk_size_feed_forward": 0,
    "cross_attention_hidden_size": None,
    "decoder_start_token_id": None,
    "diversity_penalty": 0.0,
    "do_sample": False,
    "early_stopping": False,
    "encoder_no_repeat_ngram_size": 0,
    "ep_size": 1,
    "exponential_decay_length_penalty": None,
    "finetuning_task": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
    "initializer_range": 0.02,
    "is_decoder": False,
    "is_encoder_decoder": False,
    "label2id": {"LABEL_0": 0, "LABEL_1": 1},
    "length_penalty": 1.0,
    "max_length": 20,
    "min_length": 0,
    "no_repeat_ngram_size": 0,
    "num_beam_groups": 1,
    "num_beams": 1,
    "num_return_sequences": 1,
    "output_attentions": False,
    "output_hidden_states": False,
    "output_scores": False,
    "prefix": None,
    "pretraining_tp": 1,
    "problem_type": None,
    "pruned_heads": {},
    "remove_invalid_values": False,
    "repetition_penalty": 1.0,
    "return_dict": True,
    "return_dict_in_generate": False,
    "sep_token_id": None,
    "seq_aux": True,
    "suppress_tokens": None,
    "task_specific_params": None,
    "temperature": 1.0,
    "tf_legacy_loss": False,
    "tie_encoder_decoder": False,
    "tokenizer_class": None,
    "top_k": 50,
    "top_p": 1.0,
    "torchscript": False,
    "transformers_version": "4.56.2",
    "typical_p": 1.0,
    "use_bfloat16": False,
    "use_cache": True,
}
SPECIAL_IDS = {
    "bos_token_id": IDS["[BOS]"],
    "eos_token_id": IDS["<|im_end|>"],
    "pad_token_id": IDS["[PAD]"],
}


def model_config(geometry: Geometry = MINI) -> dict[str, Any]:
    """Return config.json."""
    config = release_config(geometry)
    config |= SPECIAL_IDS
    config |= {
        "media_placeholder_token_id": IDS["<|media_pad|>"],
        "video_placeholder": "<|kimi_k25_video_placeholder|>",
        # transformers' and vLLM's names
        "image_token_id": IDS["<|media_pad|>"],
        "video_token_id": IDS["<|kimi_k25_video_placeholder|>"],
        "vision_start_token_id": IDS["<|media_begin|>"],
        "vision_end_token_id": IDS["<|media_end|>"],
        "projection_hidden_size": geometry.vision_width,
        "projection_layer_norm_eps": 1e-05,
    }
    config["text_config"] |= WRITTEN_BY_TRANSFORMERS_4 | SPECIAL_IDS
    config["text_config"] |= {
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": NORM_EPS,
        "rope_scaling": {
            "beta_fast": ROPE.beta_fast,
            "beta_slow": ROPE.beta_slow,
            "factor": ROPE.factor,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": ROPE.original_context,
            "type": "yarn",
        },
        "rope_theta": ROPE.theta,
        "routed_scaling_factor": ROUTED_SCALE,
    }
    config["vision_config"] |= {
        "_attn_implementation": "flash_attention_2",
        "vt_num_attention_heads": VISION_HEADS,
        # transformers' and vLLM's names
        "hidden_size": geometry.vision_width,
        "intermediate_size": geometry.vision_mlp_width,
        "num_attention_heads": VISION_HEADS,
        "num_hidden_layers": geometry.vision_blocks,
        "pos_emb_height": geometry.vision_grid,
        "pos_emb_time": 4,
        "pos_emb_width": geometry.vision_grid,
    }
    return config


def generation_config() -> dict[str, Any]:
    """Return generation_config.json."""
    return {"max_length": CONTEXT, "eos_token_id": IDS["<|im_end|>"]}


def preprocessor_config() -> dict[str, Any]:
    """Return preprocessor_config.json: Kimi's settings, and the same under transformers' names; images stay small."""
    patches = 1024
    return {
        "image_processor_type": "Kimi_K25ImageProcessor",
        "processor_class": "Kimi_K25Processor",
        "max_patches": patches,
        "merge_size": 2,
        "patch_size": 14,
        "size": {"max_height": 64, "max_width": 64},
        "media_proc_cfg": {
            "in_patch_limit": patches,
            "patch_size": 14,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "merge_kernel_size": 2,
            "fixed_output_tokens": None,
            "patch_limit_on_one_side": 64,
            "in_patch_limit_each_frame": patches,
            "in_patch_limit_video": None,
            "sample_fps": 2.0,
            "max_num_frames_each_video": None,
            "temporal_merge_kernel_size": 4,
            "timestamp_mode": "hh:mm:ss.fff",
            "config_type": "media_proc.processors.moonvit.MoonViTMediaProcessorConfig",
        },
    }


def write(folder: Path, geometry: Geometry = MINI) -> None:
    """Write the three files: two spaces, no newline at the end, config.json sorted, as Moonshot writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model_config(geometry), indent=2, sort_keys=True))
    (folder / "generation_config.json").write_text(json.dumps(generation_config(), indent=2))
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor_config(), indent=2))


if __name__ == "__main__":
    write(FOLDER)
