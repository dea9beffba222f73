"""Peak KV cache usage while a block runs."""

import json
import time
from dataclasses import asdict

from halfbyte.bench.report import make_report, sentences
from halfbyte.bench.server import KvPeak, inspect_server
from halfbyte.endpoint.metrics_page import read_page
from halfbyte.serve.boot_time import VARIABLE, boot_time_of

MODELS = {"data": [{"id": "mini", "root": "/models/mini", "max_model_len": 1024}]}


def page(use: float) -> str:
    return f'vllm:kv_cache_usage_perc{{engine="0"}} {use}\n'


def test_kv_peak_is_the_maximum_during_the_block():
    uses = iter([0.1, 0.75, 0.3])
    with KvPeak(lambda: read_page(page(next(uses, 0.0))), every_s=0.005) as kv:
        end = time.monotonic() + 10
        while kv.looks < 5 and time.monotonic() < end:
            time.sleep(0.005)
    assert kv.peak == 0.75
    looks = kv.looks
    time.sleep(0.05)
    assert kv.looks == looks, "nobody looks after the end"


def test_missing_kv_usage_is_none_not_zero():
    asked = []
    for result in (None, read_page("nothing 1\n")):
        with KvPeak(lambda result=result: asked.append(1) or result, every_s=0.005) as kv:
            time.sleep(0.1)
        assert kv.peak is None
    assert len(asked) == 2


def test_emulation_is_recognized_from_the_metrics_page(serve, monkeypatch):
    monkeypatch.setattr("halfbyte.bench.server._LOCAL", ())  # as if it were elsewhere
    for line, emulated in (("", False), ("halfbyte_emulated 1.0\n", True), ("halfbyte_emulated 0\n", False)):
        url = serve({"/v1/models": MODELS, "/metrics": page(0) + line})
        result = inspect_server(url, gpus="8xB200")
        assert result.emulated == emulated
        assert bool(result.no_claim_because) == emulated


def test_startup_time_is_known_only_for_servers_started_by_halfbyte(serve, monkeypatch):
    url = serve({"/v1/models": MODELS})
    monkeypatch.delenv(VARIABLE, raising=False)
    for boot in (None, boot_time_of(url, 27.4, 0.01)):
        if boot:
            monkeypatch.setenv(VARIABLE, json.dumps(asdict(boot)))
        result = make_report([], {"A": inspect_server(url)}, design="abba", slo={})
        said = " ".join(sentence for _, sentence in sentences(result))
        told = result.as_json()["servers"]["A"]["boot"]
        if boot:
            assert "A: answered 27 s after its start (cold, 1% of the checkpoint in the page cache before)" in said
            assert told == {"url": url, "seconds": 27.4, "cached": 0.01, "kind": "cold"}
        else:
            assert "startup time unknown" in said and told is None
