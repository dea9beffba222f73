"""The command line end to end: exit codes, streams, JSON, and errors for typos."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

from halfbyte.cli import main as cli
from halfbyte.doctor import advice
from halfbyte.doctor import facts as doctor
from halfbyte.errors import CheckFailedError, MachineError, RecipeError, TensorError
from halfbyte.formats.registry import FORMATS
from halfbyte.recipe.load import recipe_names, recipe_text

RECIPE = "kimi-k2.6-nvfp4-wafer"


def test_recipes_list_is_a_table_with_every_recipe(halfbyte):
    code, out, err = halfbyte("recipes", "list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["recipe", *recipe_names()]
    assert err.startswith("next: halfbyte recipes show ")


def test_recipes_show_is_the_file_to_the_byte(halfbyte):
    code, out, err = halfbyte("recipes", "show", RECIPE)
    assert (code, out) == (0, recipe_text(RECIPE))
    assert err.startswith("next: ")


def test_recipes_show_as_json_says_what_the_file_says(halfbyte):
    _, out, _ = halfbyte("recipes", "show", RECIPE, "--json")
    understood, written = json.loads(out), yaml.safe_load(recipe_text(RECIPE))
    assert {key: understood[key] for key in ("name", "description", "roles")} == {
        key: written[key] for key in ("name", "description", "roles")
    }


def test_formats_as_json_are_the_rows_of_the_format_table(halfbyte):
    _, out, _ = halfbyte("formats", "--json")
    rows = json.loads(out)
    assert [row["name"] for row in rows] == list(FORMATS)
    nvfp4 = next(row for row in rows if row["name"] == "nvfp4")
    assert nvfp4["bits_per_weight"] == 4.5
    assert nvfp4["block"] == 16
    assert {"suffix": "weight_scale_2", "dtype": "F32"} in nvfp4["tensors"]


def test_formats_as_a_table_has_a_line_a_format(halfbyte):
    code, out, err = halfbyte("formats")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == list(FORMATS)
    assert err.startswith("next: halfbyte doctor")


@pytest.mark.parametrize(
    "argv",
    [
        ("--json", "recipes", "list"),
        ("recipes", "--json", "list"),
        ("recipes", "list", "--json"),
        ("-q", "recipes", "list", "--json"),
        ("recipes", "list", "--json", "-q", "-v", "--no-color"),
    ],
)
def test_global_options_go_before_and_after_the_command(halfbyte, argv):
    code, out, err = halfbyte(*argv)
    assert code == 0
    assert [row["name"] for row in json.loads(out)] == recipe_names()
    assert (err == "") == ("-q" in argv)


@pytest.mark.parametrize("argv", [("--version",), ("formats", "--version"), ("recipes", "--version")])
def test_version(halfbyte, argv):
    from importlib.metadata import version

    assert halfbyte(*argv) == (0, f"halfbyte {version('halfbyte')}\n", "")


@pytest.mark.parametrize(
    ("argv", "fix"),
    [
        (("formts",), "did you mean 'halfbyte formats'?"),
        (("recipe", "list"), "did you mean 'halfbyte recipes'?"),
        (("recipes", "lst"), "did you mean 'halfbyte recipes list'?"),
        (("list",), "did you mean 'halfbyte recipes list'?"),
        (("xyzzy",), f"choose one of {', '.join(cli.cli.commands)}"),
        (("formats", "--jsn"), "did you mean '--json'?"),
        (("doctor", "--nodisk"), "did you mean '--no-disk'?"),
        (("doctor", "--wibble"), "choose one of --dir, --no-disk, --json, -q, --quiet"),
        (("--no-colour", "formats"), "did you mean '--no-color'?"),
        (("recipes", "show", "kimi-k2.6-nvfp4-waffer"), RECIPE),
        (("recipes", "show"), "see 'halfbyte recipes show --help'"),
        (("doctor", "--dir", "/no/such/folder"), "see 'halfbyte doctor --help'"),
        (("formats", "too", "much"), "see 'halfbyte formats --help'"),
    ],
)
def test_what_cannot_be_read_is_answered_with_a_fix(halfbyte, argv, fix):
    code, out, err = halfbyte(*argv)
    assert (code, out) == (2, "")
    what, where, remedy = err.splitlines()
    assert what.startswith("✗ ")
    assert where.startswith("  where ")
    assert remedy.startswith("  fix   ")
    assert fix in remedy


# --- options and names that users of other tools type ---


@pytest.mark.parametrize(
    ("argv", "fix"),
    [
        (("quantize", "SRC", "OUT", "--scheme", "NVFP4"), "use '-r'"),
        (("plan", "SRC", "--quantization=nvfp4"), "use '-r'"),
        (("release", "SRC", "OUT", "--format", "nvfp4"), "use '-r'"),
        (("quantize", "SRC", "--output", "OUT", "-r", RECIPE), "halfbyte quantize SOURCE OUT"),
        (("quantize", "SRC", "-o", "OUT", "-r", RECIPE), "halfbyte quantize SOURCE OUT"),
        (("quantize", "--model", "SRC", "OUT"), "halfbyte quantize SOURCE OUT"),
        (("probe", "http://127.0.0.1:1", "--output", "DIR"), "use '--out'"),
        (("quantize", "SRC", "OUT", "--dataset", "x.jsonl"), "use '--data'"),
        (("quantize", "SRC", "OUT", "--num-calibration-samples", "8"), "use '--samples'"),
        (("serve", "OUT", "--tensor-parallel-size", "8"), "use '--tp'"),
        (("serve", "OUT", "--max-model-len", "8"), "use '--context'"),
        (("eval", "URL", "--tasks", "gsm8k"), "use '--suite'"),
        (("plan", "SRC", "--gpus", "8xB200"), "use '--fit'"),
        # the command lacks the other tool's counterpart: the nearest name, as before
        (("doctor", "--scheme", "x"), "choose one of"),
    ],
)
def test_options_of_other_tools_lead_to_ours(halfbyte, argv, fix):
    code, out, err = halfbyte(*argv)
    assert (code, out) == (2, "")
    assert err.startswith("✗ unknown option '-")
    assert fix in err.splitlines()[2]


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (("serve", "--like"), "wafer-k2.6-nvfp4"),
        (("plan", "SRC", "-r"), RECIPE),
        (("quantize", "SRC", "OUT", "--recipe"), RECIPE),
        (("eval", "URL", "--suite"), "kimi-card-3shot"),
        (("probe", "URL", "--profile"), "mini"),
        (("inspect", "--example"), "kimi-k2.6"),
        (("plan", "SRC", "-r", RECIPE, "--fit"), "B200"),
        (("serve", "OUT", "--gpus"), "B200"),
    ],
)
def test_an_option_without_its_value_lists_the_values(halfbyte, argv, names):
    code, out, err = halfbyte(*argv)
    assert (code, out) == (2, "")
    what, _, fix = err.splitlines()
    assert what == f"✗ option '{argv[-1]}' requires an argument"
    assert names in fix


@pytest.mark.parametrize(
    "argv",
    [
        ("inspect", "moonshotai/Kimi-K2.6"),
        ("inspect", "moonshotai/Kimi-K2.6/"),
        ("plan", "moonshotai/Kimi-K2.6", "-r", RECIPE, "--no-measure"),
        ("quantize", "moonshotai/Kimi-K2.6", "OUT", "-r", RECIPE),
        ("calibrate", "moonshotai/Kimi-K2.6", "-o", "S", "-r", "kimi-k2.7-code-nvfp4-decart"),
        ("prune", "moonshotai/Kimi-K2.6", "OUT", "--keep", "192", "--stats", "S"),
    ],
)
def test_a_hub_id_is_answered_with_its_address(halfbyte, argv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = halfbyte(*argv)
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "✗ the folder does not exist",
        "  where moonshotai/Kimi-K2.6",
        "  fix   for the repository on the Hub, use hf://moonshotai/Kimi-K2.6",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("argv", [("audit", "org/name"), ("compare", "org/name", "o", "--data", "f.jsonl")])
def test_a_hub_id_where_only_folders_are_read_is_answered_with_its_download(halfbyte, argv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = halfbyte(*argv)
    assert (code, out) == (2, "")
    assert "hf download org/name --local-dir" in err


@pytest.mark.parametrize("source", ["/org/name", "a/b/c", "name", "org/na me", "../name"])
def test_other_paths_are_no_hub_ids(halfbyte, source):
    assert halfbyte("inspect", source)[2].splitlines()[2] == "  fix   check the path"


@pytest.mark.parametrize(
    "source", ["https://huggingface.co/moonshotai/Kimi-K2.6", "https://huggingface.co/moonshotai/Kimi-K2.6/tree/main"]
)
def test_the_page_of_a_hub_repository_is_answered_with_its_address(halfbyte, source):
    assert "use hf://moonshotai/Kimi-K2.6" in halfbyte("inspect", source)[2].splitlines()[2]


@pytest.mark.parametrize("argv", [(), ("recipes",)])
def test_a_group_without_a_command_shows_its_help_on_stderr(halfbyte, argv):
    code, out, err = halfbyte(*argv)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: halfbyte ")


def commands_with_help():
    sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
    try:
        from generate import walk
    finally:
        sys.path.pop(0)
    return list(walk(cli.cli, "halfbyte"))


def test_help_lists_every_command_once_in_a_section_and_in_full(halfbyte):
    listed = [command.name for commands in cli.SECTIONS.values() for command in commands]
    assert sorted(listed) == sorted(cli.cli.commands)
    _, out, _ = halfbyte("--help")
    assert re.findall(r"^(\w[\w ]*):$", out, re.MULTILINE) == ["Example", *cli.SECTIONS, "Global options"]
    assert "..." not in out.partition("\n")[2]
    words = " ".join(out.split())
    for name, command in cli.cli.commands.items():
        first = " ".join((command.help or "").split("\n\n")[0].split()).partition(". ")[0].rstrip(".")
        assert f" {name} {first}." in words
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("ctx", commands_with_help(), ids=lambda ctx: ctx.command_path)
def test_each_command_has_an_example_that_parses(ctx):
    example = ctx.command.example
    assert f"Example:\n  {example}\n" in ctx.get_help()
    assert len(example) <= 96
    words = shlex.split(example.partition(" > ")[0])
    assert words[: len(ctx.command_path.split())] == ctx.command_path.split()
    context = cli.cli.make_context("halfbyte", words[1:])
    while isinstance(context.command, click.Group):
        name, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        assert name
        assert command
        context = command.make_context(name, rest, parent=context)
    assert not context.args


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_the_own_options_apart_from_the_global_ones(halfbyte, flag):
    code, out, err = halfbyte("doctor", flag)
    assert (code, err) == (0, "")
    own, shared = out.split("Global options:")
    assert "--no-disk" in own
    assert "--json" not in own
    assert "--json" in shared


def test_help_lists_no_argument_that_it_says_nothing_of(halfbyte):
    _, out, _ = halfbyte("quantize", "--help")
    assert not re.search(r"^  (SOURCE|OUT)$", out, re.MULTILINE)
    assert "-r, --recipe NAME|FILE" in out


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CheckFailedError("no"), 1),
        (RecipeError("no"), 2),
        (TensorError("no"), 2),
        (MachineError("no"), 3),
        (KeyboardInterrupt(), 130),
    ],
)
def test_every_error_has_its_exit_code(halfbyte, monkeypatch, error, code):
    def fail(*_):
        raise error

    monkeypatch.setattr("halfbyte.recipe.load.recipe_names", fail)
    got, out, err = halfbyte("recipes", "list")
    assert (got, out) == (code, "")
    assert "Traceback" not in err
    assert err.startswith("✗ ")


def test_a_bug_does_not_look_like_a_failed_check(halfbyte, monkeypatch):
    monkeypatch.setattr("halfbyte.recipe.load.recipe_names", lambda: 1 / 0)
    code, out, err = halfbyte("recipes", "list")
    assert (code, out) == (cli.EXIT_BUG, "")
    assert "ZeroDivisionError" in err
    assert "this is a bug in halfbyte" in err


def machine(**changes) -> doctor.Machine:
    facts = {
        "python": "3.11.0",
        "system": "Linux",
        "cpu": doctor.Cpu("a CPU", 2, 2, ("avx2",), "skylake", 2),
        "memory": doctor.Memory(64_000_000_000, 60_000_000_000, None),
        "gpus": (),
        "torch_build": "CPU",
        "disk": None,
        "versions": {"numba": "0.65.0", "vllm": None},
        "problems": {},
    }
    return doctor.Machine(**{**facts, **changes})


def test_doctor_prints_facts_then_advice(halfbyte, monkeypatch):
    monkeypatch.setattr(doctor, "examine", lambda folder: machine())
    code, out, err = halfbyte("doctor", "--no-disk")
    assert code == 0
    assert "a CPU: 2 cores, 2 usable" in out
    assert "! no GPU" in out
    assert err == "next: halfbyte recipes list\n"


def test_doctor_as_json_has_the_advice_too(halfbyte, monkeypatch):
    gpu = doctor.Gpu("NVIDIA B200", "sm_100", 192_000_000_000)
    monkeypatch.setattr(doctor, "examine", lambda folder: machine(gpus=(gpu,)))
    code, out, _ = halfbyte("doctor", "--no-disk", "--json")
    value = json.loads(out)
    assert code == 0
    assert value["gpus"] == [
        {"name": "NVIDIA B200", "arch": "sm_100", "memory_nbytes": 192_000_000_000, "fp4": "nvfp4"}
    ]
    assert [item["text"] for item in value["advice"]] == [item.text for item in advice.advise(machine(gpus=(gpu,)))]


def test_doctor_leaves_with_3_when_halfbyte_cannot_work_here(halfbyte, monkeypatch):
    monkeypatch.setattr(doctor, "examine", lambda folder: machine(versions={"numba": None}))
    code, out, err = halfbyte("doctor", "--no-disk")
    assert code == 3
    assert "a CPU" in out
    assert "fix   pip install numba" in err


def test_a_closed_pipe_ends_quietly():
    program = "import sys; from halfbyte.cli.main import main; main(['formats', '-q', '--json'])"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (cli.EXIT_BROKEN_PIPE, "")


def test_a_terminal_that_cannot_show_symbols_still_gets_the_answer():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "halfbyte", "formts"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    assert done.stderr.startswith("? unknown command 'formts'")


def test_shells_can_complete_commands():
    environment = {**os.environ, "_HALFBYTE_COMPLETE": "bash_complete", "COMP_WORDS": "halfbyte rec", "COMP_CWORD": "1"}
    command = [sys.executable, "-m", "halfbyte"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.stdout == "plain,recipes\n"


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("halfbyte plan SRC -r ", [*recipe_names()]),
        ("halfbyte quantize SRC OUT --recipe kimi-k2.7", ["kimi-k2.7-code-nvfp4-decart"]),
        ("halfbyte release SRC OUT -r kimi-k2.6-b", ["kimi-k2.6-bf16"]),
        ("halfbyte recipes show kimi-k2.7", ["kimi-k2.7-code-nvfp4-decart"]),
        ("halfbyte serve --like wafer-k2.6-n", ["wafer-k2.6-nvfp4"]),
        ("halfbyte eval URL --suite mxfp4", ["mxfp4-card"]),
        ("halfbyte probe URL --profile m", ["mini"]),
        ("halfbyte inspect --example k", ["kimi-k2.6"]),
        ("halfbyte serve OUT --gpus 8xB", ["8xB200", "8xB300"]),
        ("halfbyte plan SRC --fit ", ["8xB200"]),
    ],
)
def test_shells_can_complete_values(words, first):
    count = len(words.split()) - (not words.endswith(" "))
    environment = {**os.environ, "_HALFBYTE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(count)}
    command = [sys.executable, "-m", "halfbyte"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    values = [line.removeprefix("plain,") for line in done.stdout.splitlines() if line.startswith("plain,")]
    assert values[: len(first)] == first
    # readline then completes files where no name of a recipe fits
    assert ("file," in done.stdout) == ("-r" in words.split() or "recipe" in words)


def test_a_recipe_file_of_ones_own_is_shown_or_refused(halfbyte, tmp_path):
    mine = tmp_path / "my-recipe.yaml"
    mine.write_text(recipe_text(RECIPE))
    assert halfbyte("recipes", "show", str(mine))[:2] == (0, recipe_text(RECIPE))
    mine.write_text(recipe_text(RECIPE).replace("shards:", "shard:"))
    code, out, err = halfbyte("recipes", "show", str(mine))
    assert (code, out) == (2, "")
    assert "did you mean 'shards'?" in err


@pytest.mark.parametrize(
    ("redirection", "expected"), [(">/dev/full", 3), (">&-", 0), ("2>&-", 0), (">/dev/null 2>/dev/full", 0)]
)
def test_streams_that_cannot_be_written_to(redirection, expected):
    command = f"{sys.executable} -m halfbyte -q formats {redirection}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == expected, done.stderr
    assert "Traceback" not in done.stderr
