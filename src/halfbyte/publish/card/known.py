"""All that a card may be made from: evidence, config and headers, the source's own card, and what a user said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Any

from halfbyte.folders import FOLDER, README, SOURCE_README
from halfbyte.inspect.inspection import Inspection, inspect
from halfbyte.json_file import json_object
from halfbyte.models.declared import quantization_config
from halfbyte.models.model import Model, describe
from halfbyte.publish.card.figures import NOT_MEASURED
from halfbyte.publish.card.markdown import Markdown, code, inline, phrase
from halfbyte.publish.card.reading import mapping, rows, words
from halfbyte.publish.card.source_card import hub_name, license_place, read_card, short
from halfbyte.publish.evidence import PLACES, Evidence, read_evidence
from halfbyte.serve.served import Served, served_checkpoint
from halfbyte.source.checkpoint import Checkpoint, open_checkpoint

HUB = "https://huggingface.co"
_MADE = ("plan", "serve", "release", "provenance")  # which are no measurements


@dataclass(frozen=True, slots=True)
class Said:
    """What only a user can say; None: nobody said it."""

    name: str | None = None  # of this checkpoint: organisation/name on the Hub, or a title
    base_model: str | None = None
    license: str | None = None
    quantized_by: str | None = None
    gpus: str | None = None  # for serving commands where no scripts were written

    def over(self, earlier: Mapping[str, Any]) -> Said:
        """Return it with what was said earlier where nothing is said now."""
        return Said(**{key: now if now is not None else words(earlier, key) for key, now in asdict(self).items()})


@dataclass(frozen=True, slots=True)
class Known:
    """One checkpoint and everything that is known of it."""

    evidence: Evidence
    said: Said
    front: Mapping[str, Any]  # the front matter of the source's card
    heading: str
    checkpoint: Checkpoint
    model: Model
    inspection: Inspection
    served: Served
    block: Mapping[str, Any]  # config.json's quantization_config
    text: Mapping[str, Any]  # what config.json says of the text model

    def get(self, kind: str) -> Mapping[str, Any] | None:
        """Return a kind of evidence; None: not measured."""
        return self.evidence.get(kind)

    def missing(self, kind: str) -> Markdown:
        """Say why there is no such evidence, and what to type; the card does not know the reader's folders."""
        made = kind in _MADE
        return phrase("**Not {}**{}", "made" if made else "measured", self.how_to(kind, "make" if made else "measure"))

    def how_to(self, kind: str, verb: str) -> Markdown:
        """Return the end of a sentence about missing evidence: why it is missing, and the command."""
        missing = self.evidence.missing.get(kind)
        why = missing.why if missing else f"{PLACES[kind].file} does not tell"
        command, _, which = PLACES[kind].command.format(out="OUT").partition(", ")
        shown = Markdown("" if why == NOT_MEASURED else f" ({inline(why)})")
        return phrase("{}. To {} it: {}{}", shown, verb, code(command), f", {which}" if which else "")

    @property
    def plan(self) -> Mapping[str, Any]:
        """The plan that the weights were written by; empty where there is none."""
        return self.get("plan") or {}

    @property
    def recipe(self) -> Mapping[str, Any]:
        """The recipe in the plan."""
        return mapping(self.plan, "recipe")

    @property
    def quantizes(self) -> bool:
        """Whether this is a quantization, as far as a plan tells: what was only pruned or decoded is none."""
        return bool(mapping(self.recipe, "quantize")) or not self.plan

    @property
    def repository(self) -> str | None:
        """Where this checkpoint lies on the Hub, if somebody said it."""
        return hub_name(self.said.name)

    @property
    def title(self) -> str:
        """The name of this checkpoint: as said, or its folder's."""
        return short((self.said.name or "").rpartition("/")[2]) or self.evidence.out.resolve().name

    @property
    def base_repository(self) -> str | None:
        """Where the source lies on the Hub, if anything states it."""
        config = self.checkpoint.config
        paths = (config.get("_name_or_path"), self.text.get("_name_or_path"))
        told = (self.said.base_model, words(self.get("provenance"), "source", "name"), *paths)
        return next((name for one in told if (name := hub_name(one))), None)

    @property
    def base_name(self) -> str | None:
        """The source's name, wherever it is stated first."""
        index = rows(self.front, "model-index")
        against = words(self.get("audit"), "against")
        told = (self.said.base_model, self.base_repository, words(self.get("provenance"), "source", "name"),
                words(index, 0, "name"), self.heading, against)  # fmt: skip
        return next((name for one in told if (name := short(one))), None)

    @property
    def base(self) -> Markdown:
        """The source in a sentence: a link where its place on the Hub is stated."""
        place = self.base_repository
        return Markdown(f"[{code(place)}]({HUB}/{place})") if place else phrase("{}", self.base_name)

    @property
    def license(self) -> str | None:
        """The licence, as said or as the source's card states it."""
        return short(self.said.license or words(self.front, "license"))

    @property
    def license_name(self) -> str | None:
        """The full name of a licence that the Hub has no word for."""
        return None if self.said.license else short(words(self.front, "license_name"))

    @property
    def license_link(self) -> str | None:
        """Where its text is."""
        return None if self.said.license else license_place(self.front)

    @property
    def quantized_by(self) -> str | None:
        """Who made this checkpoint."""
        return short(self.said.quantized_by) or (self.repository.partition("/")[0] if self.repository else None)

    @property
    def pruned(self) -> bool:
        """Whether experts were removed."""
        missing = self.evidence.missing.get("prune")  # a prune plan that cannot be read is one all the same
        return missing is None or missing.why != NOT_MEASURED or self.served.source_experts is not None

    def served_as(self, kind: str) -> str | None:
        """Return the name of the folder that a measured server said it serves; None where it said none."""
        path = {"eval": ("candidate", "told", "root"), "probe": ("endpoint", "told", "root"),
                "bench": ("servers", "A", "root")}[kind]  # fmt: skip
        told = words(self.get(kind), *path)
        return PurePath(told).name or None if told else None

    @property
    def emulated(self) -> bool:
        """Whether a server that was measured emulated its number format."""
        servers = mapping(self.get("bench"), "servers").values()
        told = [mapping(self.get("eval"), "candidate", "told"), mapping(self.get("probe"), "endpoint", "told")]
        says_so = any("halfbyte_emul" in f"{key} {value}" for one in told for key, value in one.items())
        return says_so or any(mapping(one).get("emulated") is True for one in servers)


def know(out: Path, said: Said) -> Known:
    """Read everything. CheckpointError where the folder holds no whole checkpoint."""
    evidence = read_evidence(out)
    checkpoint = open_checkpoint(out)
    model = describe(checkpoint, uneven=True)
    kept = out / FOLDER / SOURCE_README
    front, heading = read_card(kept if kept.is_file() else out / README)
    return Known(
        evidence=evidence,
        said=said,
        front=front,
        heading=heading,
        checkpoint=checkpoint,
        model=model,
        inspection=inspect(checkpoint, uneven=True),
        served=served_checkpoint(checkpoint, model),
        block=quantization_config(checkpoint.config, model) or {},
        text=model.architecture.text(checkpoint.config),
    )


def generation_config(known: Known) -> Mapping[str, Any]:
    """Return the sampling that the checkpoint itself asks for."""
    return json_object(known.checkpoint.root / "generation_config.json")
