"""Closing sections: ethical considerations, attribution and license, citation."""

from __future__ import annotations

import re
from typing import Any

from halfbyte.checkpoint.output_folder import SOURCE_README
from halfbyte.evidence.fields import words
from halfbyte.publish.card.facts import HUB, CardFacts
from halfbyte.publish.card.markdown import Markdown, code, fenced, phrase
from halfbyte.publish.card.sections.head import license_words

_UNSAFE = re.compile(r"[{}\\%$#&~^\"@]")
_YEAR = re.compile(r"(\d{4})-\d{2}-\d{2}")
_DATES = (
    ("release", ("stages", 0, "started")),
    ("provenance", ("made",)),
    ("audit", ("date",)),
    ("eval", ("started",)),
)
_REAP = """@misc{lasby2025reap,
  title = {REAP the Experts: Why Pruning Prevails for One-Shot MoE Compression},
  author = {Mike Lasby and Ivan Lazarevich and Nish Sinnadurai and Sean Lie and Yani Ioannou and Vithursan Thangarasa},
  year = {2025},
  eprint = {2510.13999},
  archivePrefix = {arXiv}
}"""


def facts(card: CardFacts) -> dict[str, Any]:
    """Return attribution, license files and BibTeX entries."""
    licenses = sorted(path.name for path in card.evidence.out.iterdir()
                      if path.name.upper().startswith(("LICENSE", "LICENCE", "NOTICE")) and path.is_file())  # fmt: skip
    reap = card.pruned and (words(card.get("prune"), "rule", "method") or "reap") == "reap"
    upstream = (card.base_name or "").rpartition("/")[2] or None
    entries = [_entry("upstream", upstream, _organization(card.base_repository), card.base_repository, None),
               _entry("this", card.title, card.quantized_by, card.repository, _year(card)),
               _REAP if reap else None]  # fmt: skip
    return {
        "base": card.base,
        "title": card.title,
        "license": license_words(card),
        "files": Markdown(", ".join(code(name) for name in licenses)) if licenses else None,
        "kept": SOURCE_README,
        "reap": reap,
        "entries": fenced("\n".join(entry for entry in entries if entry), "bibtex"),
        "no_license_file": phrase("This folder contains no license file: add the one from {}.", card.base_name),
    }


def _organization(repository: str | None) -> str | None:
    return repository.partition("/")[0] if repository else None


def _entry(kind: str, title: str | None, author: str | None, repository: str | None, year: str | None) -> str | None:
    """Return a BibTeX entry with the known fields; None without a title."""
    if title is None:
        return None
    fields = {"title": title, "author": author, "year": year}
    lines = [f"  {key} = {{{_UNSAFE.sub(' ', value)}}}" for key, value in fields.items() if value]
    lines += [f"  howpublished = {{\\url{{{HUB}/{repository}}}}}"] if repository else []
    key = re.sub(r"\W+", "_", f"{author or kind}_{title}", flags=re.ASCII).strip("_").lower()
    return f"@misc{{{key},\n" + ",\n".join(lines) + "\n}"


def _year(card: CardFacts) -> str | None:
    """Return the year of the first dated evidence."""
    for kind, path in _DATES:
        match = _YEAR.match(words(card.get(kind), *path) or "")
        if match:
            return match[1]
    return None
