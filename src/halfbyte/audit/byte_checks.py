"""Checks that read weights, streamed in chunks: hashes, scales, fused pairs and kept tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfbyte.audit.checks import quantized
from halfbyte.audit.findings import RUN_AGAIN, Finding, bad, count, good, note
from halfbyte.audit.inputs import Evidence
from halfbyte.checkpoint.folder import CONFIG
from halfbyte.checkpoint.hashing import file_sha256
from halfbyte.checkpoint.headers import TensorInfo
from halfbyte.checkpoint.output_folder import FOLDER, README, SOURCE_README
from halfbyte.checkpoint.reader import Reader
from halfbyte.families.linears import StoredLinear
from halfbyte.formats.reference.floats import bf16_to_f32
from halfbyte.formats.registry import FORMATS, input_scale_suffixes
from halfbyte.plan.manifest import Plan
from halfbyte.plan.quantization_config import MODELOPT_FILE
from halfbyte.plan.rules import DECODE, ROUTED, ROUTER, Job

CHUNK_NBYTES = 1 << 24
_E4M3_NAN, _E4M3_MAX, _E4M3_SIGN = 0x7F, 0x7E, 0x80
_E8M0_NAN = 0xFF
_BYTES = 256
_READ_BY_ENGINES = (".json", ".jinja", ".model", ".tiktoken", ".py", ".txt")  # another tool may omit other files
MB = 10**6


def hashes(evidence: Evidence) -> list[Finding]:
    """Check that every shard is a complete safetensors file with the size and SHA-256 of the journal."""
    wrong = [f"{shard}: {why}" for shard, why in sorted(evidence.unreadable.items())]
    shards: Mapping[str, int] = evidence.recorded.shards if evidence.recorded else {}
    done, total = 0, sum(shards.values())
    for shard, nbytes in shards.items():
        evidence.how_far(done / MB, total / MB, "MB")
        done += nbytes
        path = evidence.root / shard
        line = evidence.journal.get(shard)
        if not path.is_file():
            wrong.append(f"{shard} is missing")
        elif (size := path.stat().st_size) != nbytes:
            wrong.append(f"{shard} has {size:,} bytes, planned {nbytes:,}")
        elif line is None:
            wrong.append(f"{shard} is not in the journal: the run did not finish it")
        elif file_sha256(path) != line.get("sha256"):
            wrong.append(f"{shard} does not have the SHA-256 of the journal")
    if wrong:
        why = "bytes changed after they were written, or were never all written"
        return [bad("bytes", f"{count(len(wrong), 'shard')} damaged", why=why, fix=RUN_AGAIN, examples=wrong)]
    if not evidence.recorded:
        return [
            good(
                "bytes",
                f"{count(len(evidence.checkpoint.shards), 'shard')} complete; no journal to compare hashes with",
            )
        ]
    return [good("bytes", f"{len(shards)} of {len(shards)} shards have the size and SHA-256 of the journal")]


@dataclass(slots=True)
class _Tally:
    """Counts of scales, and the tensors with invalid scales."""

    blocks: int = 0
    zeros: int = 0
    e4m3: int = 0
    at_most: int = 0  # E4M3 scales at the maximum, 448
    scalars: int = 0
    wrong: list[str] = field(default_factory=list[str])


def scales(evidence: Evidence) -> list[Finding]:
    """Check that every scale is finite and positive."""
    tally = _Tally()
    with Reader(evidence.checkpoint) as reader:
        for linear, suffix, info in _scale_tensors(evidence, reader):
            if reason := _check_scales(linear, suffix, info, reader, tally):
                tally.wrong.append(f"{info.name} {reason}")
    if tally.wrong:
        why = "one NaN or infinite scale makes the logits NaN; engines print '!' until the token limit"
        text = f"{count(len(tally.wrong), 'tensor')} with scales that are not finite and positive"
        return [bad("scales", text, why=why, fix=RUN_AGAIN, examples=tally.wrong)]
    if not tally.blocks:
        return [good("scales", "nothing is quantized")]
    text = f"finite and positive; {tally.zeros:,} of {tally.blocks:,} block scales at zero"
    if tally.e4m3:
        text += f", {tally.at_most:,} at 448"
    if tally.scalars:
        text += f"; {count(tally.scalars, 'tensor scale')}"
    return [note("scales", text, "a block of scale zero decodes to zero") if tally.zeros else good("scales", text)]


def _scale_tensors(evidence: Evidence, reader: Reader) -> Iterator[tuple[StoredLinear, str, TensorInfo]]:
    """Yield each scale tensor in file order, for sequential reads."""
    tensors = [
        (linear, suffix, info)
        for linear in quantized(evidence)
        for suffix, info in linear.parts.items()
        if "scale" in suffix
    ]
    yield from sorted(tensors, key=lambda entry: (entry[2].shard, entry[2].begin))


def _check_scales(linear: StoredLinear, suffix: str, info: TensorInfo, reader: Reader, tally: _Tally) -> str:
    """Count the scales of one tensor; return the problem, or an empty string."""
    if info.dtype in ("U8", "F8_E8M0"):
        seen = np.bincount(reader.raw(info), minlength=_BYTES)
        tally.blocks += int(seen.sum())
        return f"has {seen[_E8M0_NAN]:,} E8M0 NaN (0xFF)" if seen[_E8M0_NAN] else ""
    if info.dtype == "F8_E4M3":
        seen = np.bincount(reader.raw(info), minlength=_BYTES)
        tally.blocks += int(seen.sum())
        tally.zeros += int(seen[0])
        tally.e4m3 += int(seen.sum())
        tally.at_most += int(seen[_E4M3_MAX])
        if nan := int(seen[_E4M3_NAN] + seen[_E4M3_NAN | _E4M3_SIGN]):
            return f"has {nan:,} E4M3 NaN"
        negative = int(seen[_E4M3_SIGN:].sum())
        return f"has {negative:,} negative scales" if negative else ""
    values = _values(reader, info)
    single = suffix in input_scale_suffixes() or any(
        part.suffix == suffix and part.fixed is not None for part in FORMATS[linear.format].tensors
    )
    if single:
        tally.scalars += values.size
    else:
        tally.blocks += values.size
        tally.zeros += int((values == 0).sum())
    if not np.isfinite(values).all():
        return f"has {int((~np.isfinite(values)).sum()):,} values that are not finite"
    low = (values <= 0) if single else (values < 0)
    return f"has {int(low.sum()):,} values that are not positive" if low.any() else ""


def _values(reader: Reader, info: TensorInfo) -> NDArray[Any]:
    values = reader.tensor(info).reshape(-1)
    return bf16_to_f32(values) if info.dtype == "BF16" else values.astype(np.float32)


def fused(evidence: Evidence) -> list[Finding]:
    """Check that linears that engines fuse have bit-identical tensor scales."""
    groups: dict[str, list[StoredLinear]] = {}
    for linear in quantized(evidence):
        groups.setdefault(evidence.model.family.fused_group(linear.module), []).append(linear)
    pairs = {name: members for name, members in groups.items() if len(members) > 1}
    wrong: list[str] = []
    compared = 0
    with Reader(evidence.checkpoint) as reader:
        for members in pairs.values():
            for suffix in _tensor_scales(members[0]):
                values = {x.module: _values(reader, x.parts[suffix])[0] for x in members if suffix in x.parts}
                compared += 1
                if len({value.tobytes() for value in values.values()}) > 1:
                    shown = "   ".join(f"{module.rpartition('.')[2]} {value}" for module, value in values.items())
                    wrong.append(f"{members[0].module.rpartition('.')[0]}.*.{suffix}   {shown}")
    if wrong:
        why = "vLLM fuses them and uses the first scale for both, with only a warning in the log (vllm #54974)"
        text = f"tensor scales disagree in {len(wrong):,} of {count(compared, 'fused pair')}"
        return [bad("fused", text, why=why, fix=RUN_AGAIN, examples=wrong)]
    if not compared:
        return [good("fused", "no format with shared tensor scales")]
    return [good("fused", f"{count(compared, 'pair')} of tensor scales equal, bit for bit")]


def _tensor_scales(linear: StoredLinear) -> list[str]:
    format = FORMATS[linear.format]
    weights = [part.suffix for part in format.tensors if part.is_tensor_scale]
    return weights if format.input_scale is None else [*weights, format.input_scale.suffix]


def kept(evidence: Evidence) -> list[Finding]:
    """Check that kept tensors and non-weight files have the bytes of the source."""
    assert evidence.plan is not None
    wrong: list[str] = []
    number = nbytes = 0
    with Reader(evidence.plan.checkpoint) as source, Reader(evidence.checkpoint) as output:
        for name, before in (pair for job in evidence.plan.jobs for pair in _kept_tensors(job, evidence.plan)):
            after = evidence.checkpoint.tensors.get(name)
            if after is None or (after.dtype, after.shape) != (before.dtype, before.shape):
                continue  # reported by the structure check
            number, nbytes = number + 1, nbytes + before.nbytes
            if not same_bytes(source, before, output, after):
                wrong.append(f"{name} differs from the source")
    files, stale = _other_files(evidence)
    wrong += stale
    if wrong:
        why = "the plan keeps these unchanged, so this is neither the source's model nor a quantized version of it"
        return [
            bad("kept", f"{count(len(wrong), 'kept tensor or file')} changed", why=why, fix=RUN_AGAIN, examples=wrong)
        ]
    text = f"{count(number, 'tensor')} ({nbytes:,} bytes) and {count(files, 'other file')} identical to the source"
    return [good("kept", text)]


def _kept_tensors(job: Job, plan: Plan) -> Iterator[tuple[str, TensorInfo]]:
    """Yield the tensors that a job copies, under their new names; decoding BF16 to BF16 counts as copying.

    Pruned experts and routers are covered by the prune check.
    """
    if plan.kept is not None and job.layer in plan.kept and job.role in (ROUTED, ROUTER):
        return
    for name, (info,) in job.copies():
        yield name, info
    for linear in job.linears:
        if job.action == DECODE and linear.format == "bf16":
            yield f"{linear.module}.weight", linear.parts["weight"]


def same_bytes(left: Reader, left_info: TensorInfo, right: Reader, right_info: TensorInfo) -> bool:
    """Compare two tensors of equal size in chunks."""
    pairs = zip(chunks(left_info), chunks(right_info), strict=True)
    return all(np.array_equal(left.raw(a), right.raw(b)) for a, b in pairs)


def chunks(info: TensorInfo) -> Iterator[TensorInfo]:
    """Split a tensor into chunks of bounded size."""
    for begin in range(info.begin, info.end, CHUNK_NBYTES):
        yield TensorInfo(info.name, info.dtype, info.shape, info.shard, begin, min(begin + CHUNK_NBYTES, info.end))


def _other_files(evidence: Evidence) -> tuple[int, list[str]]:
    """Return the number of non-weight files, and messages for those that differ from the source."""
    assert evidence.plan is not None
    source = evidence.plan.checkpoint
    wrong: list[str] = []
    number = 0
    derived = evidence.derived is not None
    files = [path for path in source.other_files() if not derived or path.suffix in _READ_BY_ENGINES]
    for relative in files:
        if str(relative) in (CONFIG, MODELOPT_FILE) or relative.parts[0] == FOLDER:
            continue  # generated for the output
        number += 1
        path = evidence.root / relative
        if str(relative) == README and (evidence.root / FOLDER / SOURCE_README).is_file():
            path = evidence.root / FOLDER / SOURCE_README  # replaced by the model card
        if not path.is_file():
            wrong.append(f"{relative} was not copied")
        elif path.read_bytes() != (source.root / relative).read_bytes():
            wrong.append(f"{relative} differs from the source")
    if derived:
        known = {*map(str, files), CONFIG, MODELOPT_FILE}
        wrong += [
            f"{path} is not in the source"
            for path in evidence.checkpoint.other_files()
            if path.suffix in _READ_BY_ENGINES and str(path) not in known and path.parts[0] != FOLDER
        ]
    return number, wrong
