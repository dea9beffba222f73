"""What a checkpoint has besides shards: files that are copied, and config and index, which are written last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from halfbyte.folders import FOLDER
from halfbyte.plan.engine_config import MODELOPT_FILE, modelopt_file, output_config
from halfbyte.plan.manifest import Plan
from halfbyte.source.checkpoint import CONFIG, INDEX
from halfbyte.source.inside import read_inside
from halfbyte.write import sync_folder, write_whole


def write_rest(made: Plan, out: Path, others: list[Path]) -> None:
    """Copy what is not weights and write config and index, after the last shard: a folder with a config is whole."""
    root = made.checkpoint.root
    for relative in others:
        # A source that halfbyte made has a plan and a journal of its own, which are not ours.
        if relative.parts[0] != FOLDER and str(relative) not in (CONFIG, MODELOPT_FILE):
            target = out / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            write_whole(target, read_inside(root, relative))
    names = {tensor.name: shard.name for shard in made.shards for tensor in shard.tensors}
    total = sum(tensor.nbytes for shard in made.shards for tensor in shard.tensors)
    if len(made.shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(names.items()))}
        write_whole(out / INDEX, (json.dumps(index, indent=2) + "\n").encode())
    config: dict[str, Any] = output_config(made)
    if (legacy := modelopt_file(made)) is not None:
        write_whole(out / MODELOPT_FILE, json.dumps(legacy, indent=4).encode())
    text = json.dumps(config, indent=2, ensure_ascii=False)
    write_whole(out / CONFIG, text.encode("utf-8", "backslashreplace"))  # half a surrogate pair, as JSON spells it
    sync_folder(out)
