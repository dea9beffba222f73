"""Inputs of a model card: evidence, config and headers, the source's card, and user options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Any, TypeVar

from halfbyte.checkpoint.folder import Checkpoint, open_checkpoint
from halfbyte.checkpoint.output_folder import FOLDER, README, SOURCE_README
from halfbyte.checkpoint.untrusted_files import json_object
from halfbyte.evidence.audit import Audit
from halfbyte.evidence.benchmark import Benchmark
from halfbyte.evidence.evaluation import Evaluation
from halfbyte.evidence.fields import rows, words
from halfbyte.evidence.folder import Evidence, read_evidence
from halfbyte.evidence.launches import Launches
from halfbyte.evidence.plan import PlanSummary, PruneSummary, QuantizeChoice, RecipeChoices
from halfbyte.evidence.probes import Probes
from halfbyte.evidence.provenance import Provenance
from halfbyte.evidence.record import MeasuredRecord, Record
from halfbyte.evidence.release import Release
from halfbyte.families.config_agreement import quantization_config
from halfbyte.families.model import Model, describe
from halfbyte.inspect.inspection import Inspection, inspect
from halfbyte.publish.card.figures import NOT_MEASURED
from halfbyte.publish.card.markdown import Markdown, code, inline, phrase
from halfbyte.publish.card.source_card import hub_name, license_place, read_card, repository_name, short
from halfbyte.serve.checkpoint_facts import Served, served_checkpoint

HUB = "https://huggingface.co"
_FORMAT_AT_END = re.compile(r"[-_](?:BF16|FP16|FP8|INT8|INT4|W4A16|NVFP4|MXFP4)$", re.IGNORECASE)
_NOT_MEASUREMENTS = (PlanSummary, Launches, Release, Provenance)
_R = TypeVar("_R", bound=Record)


@dataclass(frozen=True, slots=True)
class CardOverrides:
    """Card fields that only the user can provide; None if not given."""

    name: str | None = None  # title of this checkpoint
    repo: str | None = None  # organization/name on the Hub
    base_model: str | None = None
    license: str | None = None
    quantized_by: str | None = None
    gpus: str | None = None  # for serving commands if no launch scripts were written

    def over(self, earlier: Mapping[str, Any]) -> CardOverrides:
        """Return these options with unset fields filled from an earlier run."""
        return CardOverrides(
            **{key: now if now is not None else words(earlier, key) for key, now in asdict(self).items()}
        )


@dataclass(frozen=True, slots=True)
class CardFacts:
    """A checkpoint and all inputs of its card."""

    evidence: Evidence
    said: CardOverrides
    front: Mapping[str, Any]  # the front matter of the source's card
    heading: str
    checkpoint: Checkpoint
    model: Model
    inspection: Inspection
    served: Served
    block: Mapping[str, Any]  # config.json's quantization_config
    text: Mapping[str, Any]  # the text model's part of config.json

    def get(self, kind: type[_R]) -> _R | None:
        """Return a kind of evidence, or None if it was not measured."""
        return self.evidence.get(kind)

    def missing(self, kind: type[Record]) -> Markdown:
        """Return a note that evidence is missing, and why. `halfbyte card` prints the command that creates it."""
        return phrase("**Not {}**{}", "available" if kind in _NOT_MEASUREMENTS else "measured", self.why_missing(kind))

    def why_missing(self, kind: type[Record]) -> Markdown:
        """Return the end of a sentence about missing evidence: the reason in parentheses, and the full stop."""
        missing = self.evidence.missing.get(kind.kind)
        why = missing.why if missing else f"not recorded in {kind.file}"
        return Markdown("." if why == NOT_MEASURED else f" ({inline(why)}).")

    @property
    def plan(self) -> PlanSummary | None:
        """The plan that produced the weights."""
        return self.get(PlanSummary)

    @property
    def recipe(self) -> RecipeChoices | None:
        """The choices of the recipe in the plan."""
        return self.plan.choices if self.plan else None

    @property
    def quantize(self) -> QuantizeChoice | None:
        """The quantization in the recipe."""
        return self.recipe.quantize if self.recipe else None

    @property
    def quantizes(self) -> bool:
        """Whether the plan quantizes, rather than only prunes or decodes. True without a plan."""
        return self.plan is None or self.quantize is not None

    @property
    def prune_method(self) -> str:
        """How the experts were selected."""
        prune = self.get(PruneSummary)
        return (prune.rule.method if prune and prune.rule else None) or "reap"

    @property
    def repository(self) -> str | None:
        """This checkpoint's Hub repository, if given."""
        return hub_name(self.said.repo) or hub_name(self.said.name)

    @property
    def title(self) -> str:
        """The given name, the repository's name, or the source's name with a format suffix; never the folder's name."""
        name = self.said.name or self.said.repo or ""
        return short(name.rpartition("/")[2]) or f"{self._source_name}{self._suffix}"

    @property
    def local_name(self) -> str:
        """The folder name that commands use for a downloaded copy."""
        return repository_name((self.repository or "").rpartition("/")[2] or self.title) or "checkpoint"

    @property
    def _source_name(self) -> str:
        """The source's name without a trailing number format."""
        name = repository_name((self.base_name or "").rpartition("/")[2])
        name = name or repository_name(words(self.checkpoint.config, "model_type") or "") or "checkpoint"
        return _FORMAT_AT_END.sub("", name) or name

    @property
    def _suffix(self) -> str:
        """The suffix for pruning and number format, such as -REAP192-NVFP4."""
        method = "REAP" if self.prune_method == "reap" else "pruned"
        pruned = f"-{method}{self.model.experts}" if self.pruned else ""
        kept = self.pruned and not self.quantizes  # the source's own format
        return pruned + ("" if kept else f"-{self.served.quantization.partition('-')[0].upper()}")

    @property
    def base_repository(self) -> str | None:
        """The source's Hub repository, if any input names it."""
        config = self.checkpoint.config
        paths = (config.get("_name_or_path"), self.text.get("_name_or_path"))
        candidates = (self.said.base_model, self._recorded_source, *paths)
        return next((name for candidate in candidates if (name := hub_name(candidate))), None)

    @property
    def _recorded_source(self) -> str | None:
        provenance = self.get(Provenance)
        return provenance.source.name if provenance else None

    @property
    def base_name(self) -> str | None:
        """The source's name, from the first input that has one."""
        index = rows(self.front, "model-index")
        audit = self.get(Audit)
        # The source's own card comes before the name of its folder.
        candidates = (self.said.base_model, self.base_repository, words(index, 0, "name"), self._recorded_source,
                      self.heading, audit.against if audit else None)  # fmt: skip
        return next((name for candidate in candidates if (name := short(candidate))), None)

    @property
    def base(self) -> Markdown:
        """The source's name in Markdown, linked if its Hub repository is known."""
        repo = self.base_repository
        return Markdown(f"[{code(repo)}]({HUB}/{repo})") if repo else phrase("{}", self.base_name)

    @property
    def license(self) -> str | None:
        """The license, from the options or the source's card."""
        return short(self.said.license or words(self.front, "license"))

    @property
    def license_name(self) -> str | None:
        """The full name of a license that has no Hub identifier."""
        return None if self.said.license else short(words(self.front, "license_name"))

    @property
    def license_link(self) -> str | None:
        """A link to the license text."""
        return None if self.said.license else license_place(self.front)

    @property
    def quantized_by(self) -> str | None:
        """The author of this checkpoint."""
        return short(self.said.quantized_by) or (self.repository.partition("/")[0] if self.repository else None)

    @property
    def pruned(self) -> bool:
        """Whether experts were removed."""
        missing = self.evidence.missing.get(PruneSummary.kind)  # an unreadable prune plan still means pruned
        return missing is None or missing.why != NOT_MEASURED or self.served.source_experts is not None

    @property
    def served_folders(self) -> dict[type[MeasuredRecord], str]:
        """The name of the folder that each measured server reported."""
        evaluation, probes, bench = self.get(Evaluation), self.get(Probes), self.get(Benchmark)
        roots: dict[type[MeasuredRecord], str | None] = {
            Evaluation: evaluation.candidate.reported.get("root") if evaluation else None,
            Probes: probes.endpoint.reported.get("root") if probes else None,
            Benchmark: bench.servers["A"].root if bench and "A" in bench.servers else None,
        }
        return {kind: name for kind, root in roots.items() if root and (name := PurePath(root).name)}

    @property
    def emulated(self) -> bool:
        """Whether a measured server emulated its number format."""
        evaluation, probes, bench = self.get(Evaluation), self.get(Probes), self.get(Benchmark)
        reports = [evaluation.candidate.reported] if evaluation else []
        reports += [probes.endpoint.reported] if probes else []
        reported = any("halfbyte_emul" in f"{key} {value}" for report in reports for key, value in report.items())
        return reported or any(server.emulated for server in (bench.servers.values() if bench else ()))


def read_facts(out: Path, said: CardOverrides) -> CardFacts:
    """Read all inputs of a card. Raise CheckpointError if the folder holds no complete checkpoint."""
    evidence = read_evidence(out)
    checkpoint = open_checkpoint(out)
    model = describe(checkpoint, uneven=True)
    kept = out / FOLDER / SOURCE_README
    front, heading = read_card(kept if kept.is_file() else out / README)
    return CardFacts(
        evidence=evidence,
        said=said,
        front=front,
        heading=heading,
        checkpoint=checkpoint,
        model=model,
        inspection=inspect(checkpoint, uneven=True),
        served=served_checkpoint(checkpoint, model),
        block=quantization_config(checkpoint.config, model) or {},
        text=model.family.text(checkpoint.config),
    )


def generation_config(card: CardFacts) -> Mapping[str, Any]:
    """Return the contents of generation_config.json."""
    return json_object(card.checkpoint.root / "generation_config.json")
