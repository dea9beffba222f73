"""Attacks on an index and on shard names. Each takes the folder of a valid checkpoint."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

Attack = Callable[[Path], None]
INDEX = "model.safetensors.index.json"


def shards(folder: Path) -> list[str]:
    return sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values()))


def shard_named(new: str | list[str] | int | None) -> Attack:
    """Rename the second shard in the index."""

    def attack(folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        old = shards(folder)[1]
        index["weight_map"] = {name: new if at == old else at for name, at in index["weight_map"].items()}
        (folder / INDEX).write_text(json.dumps(index))

    return attack


def outside(place: Callable[[Path], str]) -> Attack:
    """Put the shard outside the folder and reference it in the index."""

    def attack(folder: Path) -> None:
        shutil.move(folder / shards(folder)[1], folder.parent / "outside.safetensors")
        shard_named(place(folder))(folder)

    return attack


def linked(target: Callable[[Path], str | Path]) -> Attack:
    """Replace the second shard by a link."""

    def attack(folder: Path) -> None:
        shard = folder / shards(folder)[1]
        shutil.move(shard, folder.parent / "outside.safetensors")
        shard.symlink_to(target(folder))

    return attack


def hundred_thousand_shards(folder: Path) -> None:
    """List 100,000 missing shards in the index."""
    index = {"weight_map": {f"a{n}": f"model-{n}.safetensors" for n in range(100_000)}}
    (folder / INDEX).write_text(json.dumps(index))


def many_names_of_one_large_header(folder: Path) -> None:
    """Write 2,000 names of one sparse file with a header of 100 MB: 200 GB in total."""
    big = folder / "big.safetensors"
    big.write_bytes((100_000_000).to_bytes(8, "little"))
    os.truncate(big, 100_000_008)
    for number in range(2_000):
        (folder / f"copy-{number}.safetensors").symlink_to(big.name)
    index = {"weight_map": {f"a{number}": f"copy-{number}.safetensors" for number in range(2_000)}}
    (folder / INDEX).write_text(json.dumps(index))


def total_of(value: object) -> Attack:
    def attack(folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        index["metadata"] = {"total_size": value}
        (folder / INDEX).write_text(json.dumps(index))

    return attack


INDICES: dict[str, Attack] = {
    "shard_above": outside(lambda folder: "../outside.safetensors"),
    "shard_above_through_a_folder": outside(lambda folder: "a/../../outside.safetensors"),
    "shard_absolute": outside(lambda folder: str(folder.parent / "outside.safetensors")),
    "shard_with_backslashes": shard_named("..\\outside.safetensors"),
    "shard_with_a_nul": shard_named("a\0.safetensors"),
    "shard_with_controls": shard_named("\x1b]0;owned\x07\n✗ all is well\r.safetensors"),
    "shard_of_a_megabyte": shard_named("x" * 1_000_000 + ".safetensors"),
    "shard_of_half_a_pair": shard_named("\ud800.safetensors"),
    "shard_of_dots": shard_named("..safetensors"),
    "shard_is_the_folder": shard_named("."),
    "shard_without_a_name": shard_named(""),
    "shard_is_a_pickle": shard_named("pytorch_model.bin"),
    "shard_is_a_list": shard_named(["a"]),
    "shard_is_a_number": shard_named(1),
    "shard_is_null": shard_named(None),
    "shard_of_a_proc": shard_named("/proc/self/mem.safetensors"),
    "link_leaves": linked(lambda folder: folder.parent / "outside.safetensors"),
    "link_leaves_relatively": linked(lambda folder: "../outside.safetensors"),
    "link_to_an_endless_device": linked(lambda folder: "/dev/zero"),
    "link_to_a_terminal": linked(lambda folder: "/dev/tty"),
    "link_in_a_circle": linked(lambda folder: shards(folder)[1]),
    "link_to_nothing": linked(lambda folder: "gone.safetensors"),
    "hundred_thousand_shards": hundred_thousand_shards,
    "many_names_of_one_large_header": many_names_of_one_large_header,
    "total_infinite": total_of(float("inf")),
    "total_of_4000_digits": total_of(10**4000),
    "total_is_an_object": total_of({}),
}
