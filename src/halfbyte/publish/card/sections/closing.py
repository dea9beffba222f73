"""Closing sections: ethical considerations, attribution and license, citation."""

from __future__ import annotations

import re
from typing import Any

from halfbyte.checkpoint.output_folder import SOURCE_README
from halfbyte.evidence.audit import Audit
from halfbyte.evidence.evaluation import Evaluation
from halfbyte.evidence.provenance import Provenance
from halfbyte.evidence.release import Release
from halfbyte.publish.card.facts import HUB, CardFacts
from halfbyte.publish.card.markdown import Markdown, code, fenced, phrase
from halfbyte.publish.card.sections.head import license_words

_UNSAFE = re.compile(r"[{}\\%$#&~^\"@]")
_YEAR = re.compile(r"(\d{4})-\d{2}-\d{2}")
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
    reap = card.pruned and card.prune_method == "reap"
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
    release, provenance, audit = card.get(Release), card.get(Provenance), card.get(Audit)
    evaluation = card.get(Evaluation)
    dates = (release.stages[0].started if release and release.stages else None, provenance and provenance.created,
             audit and audit.date, evaluation and evaluation.started)  # fmt: skip
    matches = (_YEAR.match(date or "") for date in dates)
    return next((match[1] for match in matches if match), None)
