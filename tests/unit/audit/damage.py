"""Damage an output in exactly one way, and the audit result for it."""

import hashlib
import json

from halfbyte.audit.run import CHECKS, audit
from halfbyte.checkpoint.headers import TensorSpec, lay_out, read_header

RECIPES = ("mxfp4-wafer", "nvfp4a16", "fp8-reference", "bf16")
LAYER = "language_model.model.layers.1"
EXPERT = f"{LAYER}.mlp.experts.2"
LAYER_1 = "model-00002-of-000006.safetensors"
UNNEEDED = ("prune", "loops", "statistics")  # nothing here is pruned, and nothing measured
EVERY = [*(name for name in CHECKS if name not in UNNEEDED), "repeat"]


def failed(outputs, out, **options):
    """Audit with and without the source; return the failed checks of each."""
    found = audit(out, against=outputs / "source", **options)
    assert found.checks == EVERY
    for finding in found.findings:
        assert finding.level != "bad" or (finding.text and finding.why and finding.fix)
    return found.failed, audit(out).failed


def edit_shard(out, shard, change):
    """Rewrite a shard after a change to its tensors: name -> (dtype, shape, bytes)."""
    path = out / shard
    raw = path.read_bytes()
    tensors = {n: (t.dtype, t.shape, raw[t.begin : t.end]) for n, t in read_header(path, shard).items()}
    change(tensors)
    head, infos = lay_out([TensorSpec(n, dtype, shape) for n, (dtype, shape, _) in tensors.items()], shard)
    path.write_bytes(head + b"".join(tensors[info.name][2] for info in infos))


def edit_json(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def settle(out):
    """Make index, journal and plan agree with the current shards, so that only the contents are wrong."""
    shards = sorted(path.name for path in out.glob("*.safetensors"))
    headers = {shard: read_header(out / shard, shard) for shard in shards}
    total = sum(tensor.nbytes for header in headers.values() for tensor in header.values())
    weight_map = {name: shard for shard, header in headers.items() for name in header}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (out / "model.safetensors.index.json").write_text(json.dumps(index))
    hashes = {shard: hashlib.sha256((out / shard).read_bytes()).hexdigest() for shard in shards}
    lines = [json.dumps({"shard": shard, "sha256": digest}) for shard, digest in hashes.items()]
    (out / "halfbyte" / "journal.jsonl").write_text("\n".join(lines))
    sizes = {shard: (out / shard).stat().st_size for shard in shards}
    edit_json(out / "halfbyte" / "plan.json", lambda plan: plan.update(shards=sizes))


def with_byte(name, byte, at=0):
    def change(tensors):
        dtype, shape, data = tensors[name]
        tensors[name] = (dtype, shape, data[:at] + bytes([byte]) + data[at + 1 :])

    return change
