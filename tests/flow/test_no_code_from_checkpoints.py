"""No code from a checkpoint is executed: each planted file would leave a canary, and none is found.

The commands run in separate processes with the checkpoint as the current folder, where Python looks first.
"""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from calibratable import REPOSITORY, arguments, small, texts

MODULES = [
    "modeling_kimi_k25.py", "configuration_kimi_k25.py", "tokenization_kimi.py", "processing_kimi.py",
    "sitecustomize.py", "usercustomize.py", "torch.py", "numpy.py", "json.py", "halfbyte.py", "jinja2.py", "yaml.py",
    "safetensors.py", "transformers.py", "tokenizers.py", "conftest.py", "setup.py", "numba.py", "click.py", "rich.py",
]  # fmt: skip
MAPS = {
    "AutoConfig": "configuration_kimi_k25.KimiConfig",
    "AutoModel": "modeling_kimi_k25.KimiModel",
    "AutoModelForCausalLM": "modeling_kimi_k25.KimiModel",
    "AutoTokenizer": ["tokenization_kimi.KimiTokenizer", None],
}
# The console script: `python -m` lets Python itself look into the current folder before any of our lines runs.
START = "import sys; sys.path[:] = [p for p in sys.path if p]; from halfbyte.cli.main import main; main()"


class Bomb:
    """A pickle that leaves its canary when it is loaded."""

    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return os.system, (f"touch {self.canary}",)


def plant(folder, canary):
    """Plant files in a checkpoint that a careless program would execute."""
    code = f"open({str(canary)!r}, 'a').write(__file__ + '\\n')\n"
    for name in MODULES:
        (folder / name).write_text(code)
    (folder / "halfbyte").mkdir(exist_ok=True)
    for name in ("__init__.py", "__main__.py", "cli.py"):
        (folder / "halfbyte" / name).write_text(code)
    for name in ("pytorch_model.bin", "model.pt", "optimizer.pth", "training_args.bin", "scheduler.ckpt"):
        (folder / name).write_bytes(pickle.dumps(Bomb(canary)))
    for name in ("config.json", "tokenizer_config.json"):
        found = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**found, "auto_map": MAPS, "trust_remote_code": True}))
    escape = "{{ lipsum.__globals__['os'].system('touch CANARY') }}".replace("CANARY", str(canary))
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}" + f"{{% if false %}}{escape}{{% endif %}}")
    return folder


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    canary = folder / "canary"
    return plant(small(folder / "source"), canary), canary


def run(cwd, *argv):
    """Run a command in a folder; return its exit code and output."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    command = [sys.executable, "-P", "-c", START, *map(str, argv)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stderr


def test_a_planted_file_would_be_noticed(planted, tmp_path):
    """The default behavior of `python -m`, to prove that the canary works."""
    source, _ = planted
    canary = tmp_path / "canary"
    (tmp_path / "torch.py").write_text(f"open({str(canary)!r}, 'a')\n")
    subprocess.run([sys.executable, "-c", "import torch"], cwd=tmp_path, check=True)
    assert canary.exists()
    with pytest.raises(AssertionError):
        pickle_canary = tmp_path / "second"
        pickle.loads(pickle.dumps(Bomb(pickle_canary)))
        assert not pickle_canary.exists()
    assert (source / "torch.py").exists()


def test_no_command_runs_anything(planted, tmp_path):
    source, canary = planted
    data, out = texts(tmp_path / "data.jsonl"), tmp_path / "out"
    recipe = ("-r", "kimi-k2.6-mxfp4-wafer")
    commands = [
        (0, "inspect", "."),
        (0, "plan", ".", *recipe),
        (0, "quantize", ".", out, *recipe),
        (0, "calibrate", ".", "-o", tmp_path / "stats", *arguments(data)),
        (0, "compare", ".", out, "--data", f"general={data}", "--samples", "1", "--length", "24"),
        (0, "audit", out, "--against", "."),
        (None, "loops", out, "--against", ".", "--prompts", "1", "--tokens", "4"),
        (None, "diff", ".", out),
        (0, "card", out),
        (0, "report", out),
        (0, "serve", ".", "--gpus", "8xB200"),
        (0, "doctor", "--no-disk"),
    ]
    for code, *command in commands:
        left, words = run(source, *command)
        assert not canary.exists(), (command, canary.read_text())
        assert left in ((0, 1, 2) if code is None else (code,)), (command, words[-2000:])
        assert "Traceback" not in words, words


@pytest.mark.parametrize("module", ["halfbyte.audit.vllm_load", "halfbyte.serve.loop_proxy.server", "halfbyte"])
def test_our_own_processes_do_not_look_into_the_folder(planted, module):
    from halfbyte.machine.python_path import OWN_PYTHON

    source, canary = planted
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    command = [*OWN_PYTHON, "-m", module, "--help"]
    subprocess.run(command, cwd=source, env=environment, capture_output=True, timeout=100, check=False)
    assert not canary.exists(), canary.read_text()


def test_children_of_children_do_not_either(planted):
    """The variable that `main` sets reaches the processes of engines and releases."""
    source, canary = planted
    program = (
        "import os; from halfbyte.machine.python_path import remove_current_folder as d; d(); import subprocess, sys; "
    )
    program += "subprocess.run([sys.executable, '-c', 'import torch'], check=False, stderr=-3)"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    subprocess.run([sys.executable, "-P", "-c", program], cwd=source, env=environment, timeout=100, check=True)
    assert not canary.exists(), canary.read_text()
    assert Path(source / "torch.py").exists()
