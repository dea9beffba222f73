"""`halfbyte eval` against a server that starts to hang: it stops, keeps finished answers, and resumes later."""

import pytest
from hung_proxy import HungProxy
from known_answers import knows, saved

from halfbyte.endpoint import sending

pytest.importorskip("lm_eval")

HEALTHY = 30  # of about a hundred requests, those of the pre-flight among them


@pytest.mark.parametrize("how", ["never answers", "drips its headers", "drips the size of a chunk"])
def test_evaluating_a_hung_server_ends_and_resumes_later(fake, mini, tmp_path, monkeypatch, tally, how):
    url, server = fake
    knows(server)
    assert mini(url, out="whole")[0] == 0
    all_items = len(server.items())
    proxy = HungProxy(url, how, HEALTHY)
    monkeypatch.setattr(sending, "GIVE_UP_AFTER", 2)
    with tally.one(f"`eval`: an endpoint that {how}"):
        code, _, said = mini(proxy.url, "--timeout", "0.5")
        assert proxy.hung, "it did not hang"
        assert code == 3, said
        assert "✗ the endpoint no longer responds: no answer in 0.5 s" in said
        assert "run the same command again; finished requests are kept" in said
        kept = len((tmp_path / "out" / "requests.jsonl").read_text().splitlines())
        assert kept
        proxy.heal()
        asked = len(server.items())
        code, _, said = mini(proxy.url, "--timeout", "20")
        assert code == 0, said
        assert saved(tmp_path / "out")["tasks"] == saved(tmp_path / "whole")["tasks"]
        assert len(server.items()) - asked < all_items, "what was answered was asked again"
    proxy.close()
