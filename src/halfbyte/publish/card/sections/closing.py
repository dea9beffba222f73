"""Whose model it is, under which licence, and how to cite it; nothing here is known that is not stated."""

from __future__ import annotations

import re
from typing import Any

from halfbyte.folders import SOURCE_README
from halfbyte.publish.card.known import HUB, Known
from halfbyte.publish.card.markdown import Markdown, code, fenced, phrase
from halfbyte.publish.card.reading import words
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


def facts(known: Known) -> dict[str, Any]:
    """Return attribution and citations."""
    licenses = sorted(path.name for path in known.evidence.out.iterdir()
                      if path.name.upper().startswith(("LICENSE", "LICENCE", "NOTICE")) and path.is_file())  # fmt: skip
    reap = known.pruned and (words(known.get("prune"), "rule", "method") or "reap") == "reap"
    upstream = (known.base_name or "").rpartition("/")[2] or None
    entries = [_entry("upstream", upstream, _organisation(known.base_repository), known.base_repository, None),
               _entry("this", known.title, known.quantized_by, known.repository, _year(known)),
               _REAP if reap else None]  # fmt: skip
    return {
        "base": known.base,
        "title": known.title,
        "license": license_words(known),
        "files": Markdown(", ".join(code(name) for name in licenses)) if licenses else None,
        "kept": SOURCE_README,
        "reap": reap,
        "entries": fenced("\n".join(entry for entry in entries if entry), "bibtex"),
        "no_license_file": phrase("There is no licence file in this folder: add the one of {}.", known.base_name),
    }


def _organisation(repository: str | None) -> str | None:
    return repository.partition("/")[0] if repository else None


def _entry(kind: str, title: str | None, author: str | None, place: str | None, year: str | None) -> str | None:
    """Return an entry with what is stated; None where not even a title is."""
    if title is None:
        return None
    fields = {"title": title, "author": author, "year": year}
    lines = [f"  {key} = {{{_UNSAFE.sub(' ', value)}}}" for key, value in fields.items() if value]
    lines += [f"  howpublished = {{\\url{{{HUB}/{place}}}}}"] if place else []
    key = re.sub(r"\W+", "_", f"{author or kind}_{title}", flags=re.ASCII).strip("_").lower()
    return f"@misc{{{key},\n" + ",\n".join(lines) + "\n}"


def _year(known: Known) -> str | None:
    """Return the year of the first evidence that has a date."""
    for kind, path in _DATES:
        found = _YEAR.match(words(known.get(kind), *path) or "")
        if found:
            return found[1]
    return None
