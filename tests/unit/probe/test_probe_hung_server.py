"""`halfbyte probe` against a server that starts to hang: it stops, keeps finished answers, and resumes later."""

import json

import pytest
from hung_proxy import HungProxy

from halfbyte.cli.main import run


@pytest.mark.parametrize(
    ("how", "probes", "healthy"),
    [
        ("never answers", ("json", "math"), 5),
        ("drips its headers", ("json", "math"), 5),
        ("stops in the middle of a stream", ("stream-equals-plain",), 2),
    ],
)
def test_probing_a_hung_server_ends_and_resumes_later(server, tmp_path, capsys, tally, how, probes, healthy):
    proxy, out = HungProxy(server.url, how, healthy), tmp_path / "out"
    words = ["probe", proxy.url, "-o", str(out), "--timeout", "1"]
    words += [word for name in probes for word in ("--only", name)]
    with tally.one(f"`probe`: an endpoint that {how}"):
        code = run(words)
        said = capsys.readouterr()
        assert proxy.hung, "it did not hang"
        assert code == 3, said.err
        assert "Traceback" not in said.err
        assert json.loads((out / "probe.json").read_text())["accepted"] is False
        kept = answered(out)
        assert kept
        proxy.heal()
        before = proxy.asked
        assert run(words) == 0, capsys.readouterr().err
        assert json.loads((out / "probe.json").read_text())["accepted"] is True
        if "stream" not in how:  # a broken stream is evidence: of a server that still answers, all is asked again
            assert proxy.asked - before < len(answered(out)), "what was answered was asked again"
        assert kept <= answered(out)
    proxy.close()


def answered(out):
    rows = [json.loads(line) for line in (out / "probe.jsonl").read_text().splitlines()]
    return {row["id"] for row in rows if row["kind"] == "request" and row["answer"].get("error") is None}
