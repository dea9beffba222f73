"""Printed and stored texts of a server: no terminal control sequences, no keys, no partial characters."""

import io
import json

import pytest
from fake_openai import Say

from halfbyte.cli.main import run
from halfbyte.errors import UsageError
from halfbyte.probe.profiles import load_profile
from halfbyte.probe.tool_cases import read_cases

SECRET = "sk-very-secret-0123456789"
CALL = load_profile("kimi").questions["tool-call"]["items"][0]
REQUEST = {"messages": [{"role": "user", "content": CALL["ask"]}], "tools": CALL["tools"]}


@pytest.fixture
def command(server, tmp_path):
    requests = tmp_path / "requests.jsonl"
    requests.write_text(json.dumps(REQUEST) + "\n")

    def call(*arguments: str) -> int:
        only = ("tool-call", "tool-schema", "tool-ids", "math")
        names = [part for name in only for part in ("--only", name)]
        return run(
            ["probe", server.url, "-o", str(tmp_path / "out"), "--tool-calls", str(requests), *names, *arguments]
        )

    call.out = tmp_path / "out"
    return call


def evil(text: str) -> Say:
    return Say(
        text, None, [{"id": text, "type": "function", "function": {"name": text, "arguments": text}}], "tool_calls"
    )


def test_a_model_does_not_control_the_terminal(command, fake, capsys):
    fake.answers[CALL["ask"]] = evil("\x1b]0;title\x07\x1b[31mred\u202e")
    assert command() == 1
    said = capsys.readouterr()
    assert "red" in said.out
    assert not {"\x1b", "\x07", "\u202e"} & set(said.out + said.err)


def test_a_server_does_not_control_the_terminal(command, fake, server, capsys):
    fake.fails[""] = 400
    server._server.RequestHandlerClass._refusal = lambda *_: ({}, 400)
    server._server.RequestHandlerClass._json = lambda self, *_: self._send(400, b"\x1b[31mno\x1b[0m", "text/plain")
    server._server.RequestHandlerClass.do_GET = lambda self: self._send(
        200, json.dumps({"data": [{"id": "m", "max_model_len": 4096}]}).encode(), "application/json"
    )
    assert command() == 3
    said = capsys.readouterr()
    assert "HTTP 400" in said.out and "HTTP 400" in said.err
    assert "\x1b" not in said.out + said.err


@pytest.mark.parametrize("option", ["--quiet", "--json"])
def test_a_key_that_a_model_repeats_is_printed_and_written_nowhere(option, command, fake, monkeypatch, capsys):
    monkeypatch.setenv("HALFBYTE_API_KEY", SECRET)
    fake.answers[CALL["ask"]] = evil(SECRET)
    assert command(option) == 1
    said = capsys.readouterr()
    assert "***" in said.out
    assert SECRET not in said.out + said.err
    assert {path.name for path in command.out.iterdir()} == {"probe.json", "probe.jsonl", "tool_calls.jsonl"}
    for path in command.out.iterdir():
        assert SECRET not in path.read_text(), path


@pytest.mark.parametrize("option", ["--quiet", "--json"])
def test_a_lone_surrogate_does_not_stop_the_run(option, command, fake, monkeypatch):
    fake.answers[CALL["ask"]] = evil("\ud83d")
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), "utf-8"))  # strict, as a pipe is
    assert command(option) == 1
    assert len((command.out / "tool_calls.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    "text", ["\ufeff{line}\n", "{line}\r\n\r\n{line}", "{separated}\n"], ids=["mark", "windows", "separator"]
)
def test_vendor_verifier_files_are_read(text, tmp_path):
    path = tmp_path / "requests.jsonl"
    separated = {**REQUEST, "messages": [{"role": "user", "content": "one\u2028two\x85three"}]}
    lines = {"line": json.dumps(REQUEST), "separated": json.dumps(separated, ensure_ascii=False)}
    for name, line in lines.items():
        text = text.replace("{" + name + "}", line)
    path.write_bytes(text.encode())
    assert len(read_cases(path)) == text.count('"messages"')


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000, json.dumps({**REQUEST, "tools": [{"type": "function", "function": None}]}),
        json.dumps({**REQUEST, "tools": [{"function": {}}]}),
        json.dumps({**REQUEST, "tools": [{"function": {"name": 5}}]}),
    ],
    ids=["deep", "null", "nameless", "number"],
)  # fmt: skip
def test_an_invalid_line_is_named(line, tmp_path):
    path = tmp_path / "requests.jsonl"
    path.write_text(json.dumps(REQUEST) + "\n" + line)
    with pytest.raises(UsageError, match="not a valid request with tools") as caught:
        read_cases(path)
    assert caught.value.where == f"{path}:2"


def test_an_option_of_a_request_may_have_any_name(command, fake, tmp_path):
    odd = {"watch": True, "repetition": 3, "always": 1, "timeout_s": "x", "top_k": 5}
    (tmp_path / "requests.jsonl").write_text(json.dumps({**REQUEST, **odd}))
    assert command() in {0, 1}
    sent = [one for one in fake.asked if "top_k" in one]
    assert sent and all(odd.items() <= one.items() for one in sent)


def test_no_cause_is_cut_by_what_yaml_takes_for_a_comment():
    from importlib.resources import files

    import yaml

    causes = yaml.safe_load((files("halfbyte") / "probe/data/causes.yaml").read_text(encoding="utf-8"))
    texts = [text for cause in causes.values() for text in cause.values()]
    assert len(texts) > 20
    assert [text for text in texts if text.count("(") != text.count(")") or text.count("`") % 2] == []
