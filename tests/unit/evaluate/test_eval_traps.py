"""The nine pitfalls of lm-eval in docs/eval.md: each names existing tests.

Two are tested here: stop strings that a chat request would drop, and model names that make lm-eval guess.
"""

import re
from types import SimpleNamespace

import pytest
from known_answers import ROOT, knows

from halfbyte.errors import CheckFailedError

pytest.importorskip("lm_eval")
TRAPS = 9
ROW = re.compile(r"^\| (\d) \| .* \|$", re.MULTILINE)
NAMED = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def test_every_trap_has_tests_and_they_exist():
    rows = [match[0] for match in ROW.finditer((ROOT / "docs" / "eval.md").read_text())]
    assert [int(row[2]) for row in rows] == list(range(1, TRAPS + 1))
    files = {path.name: path for path in (ROOT / "tests").rglob("test_*.py")}
    for row in rows:
        named = NAMED.findall(row)
        assert named, f"no test for {row}"
        for file, test in named:
            assert re.search(rf"^def {test}\(", files[file].read_text(), re.MULTILINE), f"{file} has no {test}"


def chat(stops):
    from halfbyte.evaluate.recording import RecordingChat

    scope = SimpleNamespace(url="http://127.0.0.1:1", model="m", task="t")
    model = RecordingChat(SimpleNamespace(scope=scope), request_seed=1)
    from lm_eval.models.api_models import JsonChatStr

    return model._payload(JsonChatStr('[{"role": "user", "content": "x"}]'), {"until": stops, "max_gen_toks": 5})


def test_a_chat_gets_every_stop_text_or_is_refused():
    four = ["a", "b", "c", "d"]
    assert chat(four)["stop"] == four
    with pytest.raises(CheckFailedError, match="more than 4 stop strings"):
        chat([*four, "e"])


@pytest.mark.parametrize("name", ["kimi-instruct", "kimi-chat"])
def test_the_model_name_does_not_change_the_requests(start_fake, mini, name, tmp_path):
    """lm-eval only warns about such a name without a template. Here the suite decides, and eval.json records it."""
    sent = []
    for called in ("m", name):
        url, server = start_fake()
        knows(server)
        server.models[0]["id"] = called
        assert mini(url, suite="mini", out=called)[0] == 0
        sent.append(sorted(str({**one, "model": ""}) for one in server.items()))
    assert sent[0] == sent[1]
    result = (tmp_path / name / "eval.json").read_text()
    assert "completions, no template" in result and "chat, with the server's template" in result
