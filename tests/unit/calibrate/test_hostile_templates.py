"""Hostile chat templates: they reach nothing and always terminate."""

import os
import resource

import pytest
from attacks.bounds import within

from halfbyte.calibrate import chat as templates
from halfbyte.calibrate.chat import load_template
from halfbyte.errors import CheckpointError

HELLO = [{"role": "user", "content": "hello"}]
ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__base__.__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('touch CANARY') }}",
    "{{ lipsum.__globals__['os'].popen('touch CANARY').read() }}",
    "{{ self.__init__.__globals__.__builtins__.__import__('os').system('touch CANARY') }}",
    "{{ raise_exception.__globals__['sys'].modules['os'].system('touch CANARY') }}",
    "{{ ('%s' | attr('format_map'))({}).__class__ }}{{ ''|attr('__class__')|attr('__mro__') }}",
    "{% set x = messages.append({'role': 'system', 'content': 'mine'}) %}{{ x }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os.getcwd() }}",
    "{{ strftime_now.__globals__ }}",
    "{{ messages[0].__init__.__globals__ }}",
]
ENDLESS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(9) %}{% endfor %}{% endfor %}{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% set n = namespace(x='xxxxxxxx') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "{{ 'x' * 99999999999 }}",
    "{{ 9 ** (9 ** (9 ** 9)) }}",
    "{{ '%999999999999d' % 1 }}",
    "{{ 'x' | center(99999999999) }}",
    "{{ [1] * 99999999999 }}",
]


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.setattr(templates, "SECONDS", 3.0)
    monkeypatch.setattr(templates, "STARTING_SECONDS", 25.0)  # jinja2 folds constants while it compiles
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "chat_template.jinja").write_text(text)
        return load_template(tmp_path, {})

    return write


@pytest.mark.parametrize("text", ESCAPES)
def test_a_template_reaches_nothing(load, tmp_path, text):
    with within(60):
        try:
            said = load(text).text(HELLO)
        except CheckpointError as error:
            said = error.what
    assert not (tmp_path / "CANARY").exists()
    for secret in ("root:", "<class", "Popen", "__builtins__", str(tmp_path)):
        assert secret not in said.replace("access to attribute", "")


@pytest.mark.parametrize("text", ENDLESS)
def test_a_template_comes_to_an_end(load, text):
    with within(60), pytest.raises(CheckpointError) as caught:
        load(text).text(HELLO)
    assert caught.value.what.startswith(
        ("the chat template failed on a conversation: ", "cannot read the chat template: ")
    )


def test_api_keys_are_not_in_the_templates_environment(load, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_canary")
    loaded = load("{{ messages[0].content }}")
    process = loaded._process._process
    with open(f"/proc/{process.pid}/environ", "rb") as file:  # noqa: PTH123
        found = file.read()
    assert b"hf_canary" not in found
    assert b"PATH=" in found


def test_a_process_ends_with_its_template(load):
    loaded = load("{{ messages[0].content }}")
    assert loaded.text(HELLO) == "hello"
    pid = loaded._process._process.pid
    del loaded
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_run_that_has_a_thousand_files_open(load):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], min(4096, before[1])), before[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert load("{{ messages[0].content }}").text(HELLO) == "hello"
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
