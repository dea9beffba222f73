"""Untrusted text in every field of a card: it is shown and has no effect."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from card_evidence import everything, measured, pruned, put, write_out
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from markdown_it.token import Token

from halfbyte.evidence.folder import KINDS, Missing
from halfbyte.evidence.record import InvalidRecordError
from halfbyte.publish.card.facts import CardOverrides, read_facts
from halfbyte.publish.card.markdown import (
    MOST_CHARACTERS,
    bullets,
    code,
    code_in_table,
    fenced,
    inline,
    table,
    visible,
    words_alone,
)
from halfbyte.publish.card.render import render
from halfbyte.publish.card.source_card import read_card
from halfbyte.publish.card.write import write_card

HOSTILE = (
    "a|b`c<script>alert(1)</script>\n\n# Head\n- item\n```\n~~~\n---\nx](https://evil.example/y) ![i](//e/p.png) "
    "[l][r] {{ 7*7 }} {% if %} &lt; &#60;img src=x onerror=1&#62; <https://evil.example> www.evil.example "
    "\x00\x07\x1b[31m\u202etxt\u2066\u200b\ufeff\u2028end $$x$$ \\( _em_ **st** ~~s~~ | 1. one"
)
STARTS = ("# head", "- item", "+ item", "1. one", "2) two", "> quote", "=====", "---", "***", "    code", "| a | b |",
          "~~~", "```", "<div>", "[x]: http://e", "![i](p)", ":::note")  # fmt: skip
INVISIBLE = "\x00\x07\x1b\u202e\u2066\u200b\ufeff\u2028"
WRONG: tuple[Any, ...] = (None, [{"a": 10**400}], {"b": [10**400]}, -(10**400))
PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def tokens(text: str) -> Iterator[Token]:
    for token in PARSER.parse(text):
        yield token
        yield from token.children or []


def cell_texts(text: str) -> list[str]:
    """Return the visible text of each cell."""
    parsed = PARSER.parse(text)
    cells = [parsed[at + 1] for at, token in enumerate(parsed) if token.type == "td_open"]
    return ["".join(child.content for child in cell.children or []) for cell in cells]


def shortened(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"


def kinds(text: str) -> set[str]:
    return {token.type for token in tokens(text)}


@pytest.mark.parametrize("value", [HOSTILE, *STARTS, *(f"{start}\n{start}" for start in STARTS)])
def test_a_value_is_words_and_nothing_else(value: str) -> None:
    assert kinds(words_alone(value)) <= {"paragraph_open", "inline", "text", "text_special", "paragraph_close"}
    one = kinds(bullets([value])) - {"bullet_list_open", "list_item_open", "list_item_close", "bullet_list_close"}
    assert one <= {"paragraph_open", "inline", "text", "text_special", "paragraph_close"}


@pytest.mark.parametrize("value", [HOSTILE, *STARTS])
def test_a_cell_stays_one_cell(value: str) -> None:
    whole = " ".join(visible(value).split())
    assert cell_texts(table(["a", "b"], [[value, code(value)], ["x", "y"]])) == [*[shortened(whole)] * 2, "x", "y"]
    allowed = {"text", "text_special", "inline", "code_inline"}
    found = kinds(table(["a", "b"], [[value, code(value)]]))
    assert {kind for kind in found if not kind.endswith(("_open", "_close"))} <= allowed
    assert not {"link_open", "em_open", "strong_open", "s_open"} & found


@pytest.mark.parametrize(
    ("value", "is_code"),
    [
        ("a|b", True),
        (r"re:.*\.(gate|up)_proj", True),
        ("||", True),
        (r"a\|b", False),
        ("a`|b", False),
        (HOSTILE, False),
    ],
)
def test_code_with_bars_stays_one_cell(value: str, is_code: bool) -> None:
    made = table(["a", "b"], [[code_in_table(value), "y"]])
    assert cell_texts(made) == [shortened(" ".join(visible(value).split())), "y"]
    assert ("code_inline" in kinds(made)) == is_code


@pytest.mark.parametrize("value", [HOSTILE, "```\n# x", "````\n`````", "~~~", "\x1b[31m", "a\n\n\n\nb"])
def test_a_block_of_code_holds_everything(value: str) -> None:
    found = [token.type for token in tokens(f"before\n\n{fenced(value, 'text')}\n\nafter")]
    assert found.count("fence") == 1
    assert found.count("paragraph_open") == 2


def test_what_a_value_says_can_be_read() -> None:
    shown = next(token for token in PARSER.parse(inline("a|b `c` <d> & *e* _f_ g_h [i](j) $k$ x@y.z http://q"))
                 if token.type == "inline")  # fmt: skip
    assert "".join(token.content for token in shown.children or []) == (
        "a|b `c` <d> & *e* _f_ g_h [i](j) $k$ x@y.z http://q"
    )


def test_what_cannot_be_seen_is_shown_or_a_space() -> None:
    assert visible("a\x00b\u202ec\u200dd\u2028e\tf") == "a\\u0000b\\u202ec\\u200dd e f"
    assert visible("שלום 漢字 é") == "שלום 漢字 é"


@pytest.mark.parametrize(
    ("text", "shown"),
    [("in /home/me/x/model.safetensors, there", "in …/model.safetensors, there"), ("~/a/b", "…/b"), ("a/b/c", "a/b/c"),
     ("http://host/a/b", "http://host/a/b"), ("6 / 6 right", "6 / 6 right"), ("-v x:/root/.cache", "-v x:/root/.cache"),
     ("'/tmp/x/y'", "'…/y'"), ("/model", "/model")],
)  # fmt: skip
def test_folders_of_this_machine_are_not_told(text: str, shown: str) -> None:
    assert visible(text) == shown


def poisoned(value: Any) -> Any:
    """Return evidence with hostile text in every text and data key."""
    if isinstance(value, dict):
        return {key: poisoned(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [poisoned(inner) for inner in value]
    return f"{value} {HOSTILE}" if isinstance(value, str) else value


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every leaf."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield from paths(inner, (*at, key))
    if not isinstance(value, (dict, list)):
        yield at


def sound(text: str, plain: str) -> None:
    """Check that a card with hostile text has the same structure as one without, and no foreign markup."""
    body = ModelCard(text).text
    found, wanted = kinds(body), kinds(ModelCard(plain).text)
    assert found <= wanted | {"text_special"}
    assert not {"html_block", "html_inline"} & found
    for kind in ("table_open", "heading_open", "image", "fence"):
        assert sum(token.type == kind for token in tokens(body)) == sum(
            token.type == kind for token in tokens(ModelCard(plain).text)
        ), kind
    links = {token.attrs["href"] for token in tokens(body) if token.type == "link_open"}
    assert all(str(link).startswith("https://huggingface.co/moonshotai/") or link == "LICENSE" for link in links), links
    assert not set(INVISIBLE) & set(text)
    assert "49" not in {token.content for token in tokens(body)}


@pytest.mark.parametrize("make", [everything, pruned])
def test_hostile_text_in_every_field_changes_no_structure(tmp_path: Path, make: Any) -> None:
    plain = write_card(write_out(tmp_path / "plain", make())).read_text()
    evidence = poisoned(make())
    for keep in (
        ("release", "verdict"), ("release", "gates"), ("release", "stages"), ("provenance", "source", "name"),
        ("probe", "probes"), ("audit", "findings"), ("eval", "label"), ("eval", "tasks"), ("bench", "design"),
        ("loops", "level"), ("plan", "fingerprint"), ("release", "plan"), ("audit", "plan"), ("provenance", "plan"),
    ):  # fmt: skip
        restore(evidence, make(), keep)
    for row in evidence.get("probe", {}).get("probes", []):
        row |= {key: f"{row[key]} {HOSTILE}" for key in ("title", "measured", "threshold")}
        row["excerpts"] = poisoned(row["excerpts"])
    for row in evidence.get("release", {}).get("gates", []):
        row |= {key: f"{row[key]} {HOSTILE}" for key in ("name", "required", "measured", "why")}
    for row in evidence.get("release", {}).get("stages", []):
        row["command"] = poisoned(row["command"])
    for row in evidence.get("audit", {}).get("findings", []):
        row |= {key: f"{row[key]} {HOSTILE}" for key in ("check", "text")}
    for row in evidence.get("eval", {}).get("tasks", []):
        row |= {key: f"{row[key]} {HOSTILE}" for key in ("task", "prompt_format")}
        row |= {key: poisoned(row[key]) for key in ("anomalies", "notes")}
    text = write_card(write_out(tmp_path / "out", evidence)).read_text()
    sound(text.replace("# out\n", "# plain\n"), plain)
    assert "evil.example" in text  # it was there


def restore(evidence: dict[str, Any], whole: dict[str, Any], path: tuple[str, ...]) -> None:
    if path[0] in evidence:
        *way, last = path
        for key in way:
            evidence, whole = evidence[key], whole[key]
        evidence[last] = whole[last]


def test_hostile_keys(tmp_path: Path) -> None:
    evidence = everything()
    evidence["compare"]["domains"][HOSTILE] = evidence["compare"]["domains"]["news"]
    evidence["plan"]["calibration"]["domains"] = {HOSTILE: 5}
    evidence["serve"]["launches"][0]["environment"] = {HOSTILE: HOSTILE}
    evidence["bench"]["servers"][HOSTILE] = evidence["bench"]["servers"]["A"]
    evidence["provenance"]["environment"]["packages"] = {HOSTILE: HOSTILE}
    task = evidence["eval"]["tasks"][2]
    task["candidate"]["by_metric"][HOSTILE] = task["candidate"]["by_metric"]["acc,none"]
    plain = write_card(write_out(tmp_path / "plain", everything())).read_text()
    sound(write_card(write_out(tmp_path / "plain2", evidence)).read_text(), plain)


def test_hostile_config_card_and_words_of_the_user(tmp_path: Path) -> None:
    front = {
        key: HOSTILE for key in ("license", "license_name", "license_link", "language", "pipeline_tag", "base_model")
    }
    readme = f"---\n{json.dumps(front)}\n---\n# {HOSTILE}\n"
    out = write_out(tmp_path / "plain", everything(), readme=readme)
    config = json.loads((out / "config.json").read_text())
    config["architectures"] = [HOSTILE]
    config["_name_or_path"] = HOSTILE
    config["quantization_config"]["ignore"] = [HOSTILE, "lm_head"]
    config["text_config"]["rope_scaling"]["type"] = HOSTILE
    (out / "config.json").write_text(json.dumps(config))
    put(out, everything())
    plain = write_card(write_out(tmp_path / "other" / "plain", everything())).read_text()
    said = CardOverrides(name=HOSTILE, base_model=HOSTILE, license=HOSTILE, quantized_by=HOSTILE)
    text = write_card(out, said).read_text()
    sound(text, plain)
    data = ModelCard(text).data.to_dict()
    assert data["license"] == "other"
    assert "\n" not in data["license_name"]
    assert data["base_model"] == "moonshotai/Kimi-Pico"  # a name that is none is not one


@pytest.mark.parametrize("make", [everything, pruned])
def test_values_of_other_kinds_stop_no_card(tmp_path: Path, make: Any) -> None:
    """Each value in each file is replaced by one of another kind, one at a time; there is a card all the same."""
    known = read_facts(write_out(tmp_path / "out", make()), CardOverrides())
    render(known)
    refused = 0
    for kind, held in make().items():
        prefixes = {path[:depth] for path in paths(held) for depth in range(1, len(path) + 1)}
        for way, wrong in zip(sorted(prefixes, key=str), itertools.cycle(WRONG), strict=False):
            broken = json.loads(json.dumps(held))
            inner = broken
            for key in way[:-1]:
                inner = inner[key]
            inner[way[-1]] = wrong
            found, missing = dict(known.evidence.records), dict(known.evidence.missing)
            try:
                found[kind] = KINDS[kind].of({**measured(known.evidence.out, kind, broken)})
            except InvalidRecordError as error:
                assert error.what.startswith(f"{Path(KINDS[kind].file).name} "), error
                del found[kind]
                missing[kind] = Missing(error.what, "")
                refused += 1
            card = render(replace(known, evidence=replace(known.evidence, records=found, missing=missing)))
            assert card.startswith("---\n"), (kind, way, wrong)
    assert refused > 50


@pytest.mark.parametrize("text", ["---\na: &a [1]\nb: *a\n---\n", "---\n- list\n---\n", "---\n{{{\n---\n", "---\n", ""])
def test_front_matter_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "README.md").write_text(text)
    assert read_card(tmp_path / "README.md") == ({}, "")


@pytest.mark.parametrize(
    "link", ["javascript:alert(1)", "x](https://evil.example)", "https://a.example/ b", "data:text/html,x", "a\nb", 7]
)
def test_a_link_to_a_licence_is_one_or_none(tmp_path: Path, link: Any) -> None:
    readme = f"---\n{json.dumps({'license': 'other', 'license_name': 'theirs', 'license_link': link})}\n---\n"
    text = write_card(write_out(tmp_path / "out", {}, readme=readme)).read_text()
    assert "| License | theirs |" in text
    assert "license_link" not in text


def test_a_true_link_to_a_licence_is_kept(tmp_path: Path) -> None:
    link = "https://huggingface.co/moonshotai/Kimi-K2.6/blob/main/LICENSE"
    readme = f"---\nlicense: other\nlicense_name: modified-mit\nlicense_link: {link}\n---\n"
    text = write_card(write_out(tmp_path / "out", {}, readme=readme)).read_text()
    assert f"| License | [modified-mit]({link}) |" in text
    assert f"license_link: {link}" in text
