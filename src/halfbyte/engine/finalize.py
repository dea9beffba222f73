"""Finalize a checkpoint: copy non-weight files, then write the index and the config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from halfbyte.checkpoint.atomic_write import sync_folder, write_whole
from halfbyte.checkpoint.contained_paths import read_inside
from halfbyte.checkpoint.folder import CONFIG, INDEX
from halfbyte.checkpoint.output_folder import FOLDER, README, SOURCE_README
from halfbyte.plan.manifest import Plan
from halfbyte.plan.quantization_config import MODELOPT_FILE, modelopt_file, output_config


def finalize(plan: Plan, out: Path, others: list[Path]) -> None:
    """Copy non-weight files and write index and config. The config is last: a folder that has one is complete."""
    root = plan.checkpoint.root
    for relative in others:
        # The plan and journal of a source that halfbyte wrote are not part of this output.
        if relative.parts[0] != FOLDER and str(relative) not in (CONFIG, MODELOPT_FILE):
            target = out / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            data = read_inside(root, relative)
            write_whole(target, data)
            if str(relative) == README:  # the model card replaces it and is derived from this copy
                write_whole(out / FOLDER / SOURCE_README, data)
    names = {tensor.name: shard.name for shard in plan.shards for tensor in shard.tensors}
    total = sum(tensor.nbytes for shard in plan.shards for tensor in shard.tensors)
    if len(plan.shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(names.items()))}
        write_whole(out / INDEX, (json.dumps(index, indent=2) + "\n").encode())
    config: dict[str, Any] = output_config(plan)
    if (legacy := modelopt_file(plan)) is not None:
        write_whole(out / MODELOPT_FILE, json.dumps(legacy, indent=4).encode())
    text = json.dumps(config, indent=2, ensure_ascii=False)
    write_whole(out / CONFIG, text.encode("utf-8", "backslashreplace"))  # keeps lone surrogates as JSON escapes
    sync_folder(out)
