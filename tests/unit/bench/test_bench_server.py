"""Identification of the server behind a URL, with a small real HTTP server that answers like an engine."""

import pytest

from halfbyte.bench import server as bench_server
from halfbyte.bench.server import GpuPower, differences, inspect_server, over_time, read_gpus
from halfbyte.errors import MachineError, UsageError

MODELS = {"data": [{"id": "mini", "root": "/models/mini", "max_model_len": 1024}]}
H200 = "78.65, 345, 3201, 35, 0\n"  # driver 580.159.04


def pages(version: str = "0.32.0", **more) -> dict:
    cache = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="10",cache_dtype="fp8"} 1.0\n'
    return {"/v1/models": MODELS, "/version": {"version": version}, "/metrics": cache, **more}


def test_a_server_on_a_machine_without_gpus_computes_on_its_cpu(serve, monkeypatch):
    monkeypatch.setattr(bench_server, "_gpu_here", lambda: False)
    url = serve(pages())
    result = inspect_server(f"{url}/v1/")
    assert (result.url, result.model, result.root, result.context) == (url, "mini", "/models/mini", 1024)
    assert result.kv_tokens == 160
    as_float = {"data": [MODELS["data"][0] | {"max_model_len": 1024.0}]}
    assert repr(inspect_server(serve(pages() | {"/v1/models": as_float})).context) == "1024"
    assert result.device == "cpu"
    assert result.no_claim_because == "the server computes on a CPU"
    assert inspect_server(url, gpus="8xB200").device == "cpu", "what is seen counts more than what is told"


def test_a_gpu_is_a_gpu_and_unknown_is_unknown(serve, monkeypatch):
    monkeypatch.setattr(bench_server, "_gpu_here", lambda: True)
    url = serve(pages())
    assert inspect_server(url).device == "gpu"
    assert inspect_server(url).no_claim_because == ""
    assert inspect_server(serve(pages("0.32.0+cpu"))).device == "cpu"
    monkeypatch.setattr(bench_server, "_LOCAL", ())  # as if it were elsewhere
    assert inspect_server(url).device == "unknown"
    assert "hardware is unknown" in inspect_server(url).no_claim_because
    assert inspect_server(url, gpus="8xB200").no_claim_because == ""


def test_an_emulated_server_is_recognised(serve, monkeypatch):
    monkeypatch.setattr(bench_server, "_gpu_here", lambda: True)
    url = serve(pages())
    assert not inspect_server(url).emulated
    assert inspect_server(url, emulated=True).no_claim_because == "the server emulates its number format"
    told = serve(pages(**{"/server_info": {"config": "quantization=halfbyte_emulate"}}))
    assert inspect_server(told).emulated
    monkeypatch.setattr(bench_server, "local_command", lambda _: "vllm serve x --quantization halfbyte_emulate")
    assert inspect_server(url).emulated


def test_the_command_of_a_local_server_is_found(serve):
    assert "pytest" in bench_server.local_command(serve({}))
    assert bench_server.local_command("http://127.0.0.1:1") == ""
    assert bench_server.local_command("http://example.org:80") == ""


def test_servers_that_do_not_respond_are_refused(serve):
    with pytest.raises(MachineError, match="the server does not respond"):
        inspect_server("http://127.0.0.1:1")
    with pytest.raises(MachineError, match="not an OpenAI-compatible server: it returned an HTML page"):
        inspect_server(serve({"/v1/models": "<html>"}))
    with pytest.raises(UsageError, match="is not a valid server URL"):
        inspect_server("http://[::1")
    with pytest.raises(UsageError, match="no model 'other'"):
        inspect_server(serve(pages()), model="other")


@pytest.mark.parametrize("variable", ["HALFBYTE_API_KEY", "OPENAI_API_KEY"])
def test_a_key_comes_from_either_variable_and_a_refusal_is_named(serve, monkeypatch, variable):
    for name in ("HALFBYTE_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    url = serve(pages(), key="sk-very-secret")
    with pytest.raises(MachineError, match=r"requires an API key \(HTTP 401\)"):
        inspect_server(url)
    monkeypatch.setenv(variable, "sk-very-secret")
    assert inspect_server(url).model == "mini"
    monkeypatch.setenv(variable, "sk-another")
    with pytest.raises(MachineError, match=r"rejects the API key \(HTTP 401\)"):
        inspect_server(url)


def test_differences_beside_the_checkpoint(serve):
    cache = 'vllm:cache_config_info{block_size="16",cache_dtype="auto"} 1\n'
    a, b = inspect_server(serve(pages())), inspect_server(serve(pages("0.33.0", **{"/metrics": cache})))
    assert differences(a, b) == ["version: 0.32.0 and 0.33.0", "cache_dtype: fp8 and auto"]
    assert differences(a, a) == []


def test_power_and_clocks():
    one = read_gpus(H200)
    assert one == [{"watts": 78.65, "sm_mhz": 345, "memory_mhz": 3201, "celsius": 35, "busy_percent": 0}]
    two = read_gpus(H200 + "[N/A], 1000, 3201, 40, 100\n")
    result = over_time([two, two])
    assert result["gpus"] == 2
    assert result["watts"] == pytest.approx(2 * 78.65), "of all, from those that tell"
    assert result["sm_mhz"] == pytest.approx((345 + 1000) / 2)
    assert over_time([]) is None


def test_no_nvidia_smi_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with GpuPower(wanted=True) as power:
        pass
    assert power.summary is None
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{H200.strip()}'\n")
    program.chmod(0o755)
    with GpuPower(wanted=True) as power:
        power._done.wait(0.5)
    assert power.summary["watts"] == pytest.approx(78.65)
    with GpuPower(wanted=False) as power:
        pass
    assert power.summary is None
