"""Options are declared once: the command line, the recipe's release block, stages and the API agree on each of them."""

import inspect
from dataclasses import MISSING, fields
from typing import get_args

import click
import pytest

from halfbyte import api
from halfbyte.cli.main import cli
from halfbyte.options import check, publish, release, serve, server_tests
from halfbyte.options.check import AuditOptions, CompareOptions
from halfbyte.options.declare import options_of, to_argv
from halfbyte.options.stages import STAGE_OPTIONS, stage_argv
from halfbyte.recipe.release import Release

COMMANDS = {"scripts": "serve", "source": "serve"}  # stages that are not named after their command
ONLY_IN_RECIPES = {("eval", "against"), ("eval", "flip_rate")}  # chooses stages; for the preflight
SAMPLES = {int: 3, float: 0.5, str: "a/b", bool: True}


def block_of(stage):
    """Return the pydantic model of a stage's block."""
    models = [kind for kind in get_args(Release.model_fields[stage].annotation) if hasattr(kind, "model_fields")]
    return models[0]


def keys():
    return [(stage, key) for stage in STAGE_OPTIONS for key in block_of(stage).model_fields]


def parameter(stage, key):
    """Return the parameter of the stage's command for a key of its block."""
    command = cli.commands[COMMANDS.get(stage, stage)]
    return next((param for param in command.params if param.name == key), None)


@pytest.mark.parametrize(("stage", "key"), [pair for pair in keys() if pair not in ONLY_IN_RECIPES])
def test_a_key_of_the_release_block_is_an_option_of_its_command(stage, key):
    option, field = parameter(stage, key), block_of(stage).model_fields[key]
    assert option is not None, f"halfbyte {stage} has no option for release.{stage}.{key}"
    assert field.is_required() or field.default is None  # omitted: the command's default, never another one
    if isinstance(option.type, click.Choice):
        assert str(list(option.type.choices))[1:-1] in str(field.annotation)


@pytest.mark.parametrize("stage", STAGE_OPTIONS)
def test_the_arguments_of_a_stage_are_read_back_as_the_values_of_its_block(stage):
    row = STAGE_OPTIONS[stage]
    block = {}
    for name, option in row.keys().items():
        value = option.choices[-1] if option.choices else SAMPLES.get(option.type, ".")
        block[name] = [2, 8] if option.declaration.items else [value, value] if option.multiple else value
    known = {row.model: ["OUT"], CompareOptions: ["SRC", "OUT"]}
    words = [*known.get(row.model, ["OUT"]), *stage_argv(stage, block)]
    parent = click.Context(cli, info_name="halfbyte", **cli.context_settings)  # commands keep the names of --help
    context = cli.commands[COMMANDS.get(stage, stage)].make_context(stage, words, parent=parent)
    for name, value in block.items():
        option, parsed = row.keys()[name], context.params[name]
        expected = ",".join(map(str, value)) if option.declaration.items else value
        assert (list(parsed) if option.multiple else parsed) == (
            expected if option.type in SAMPLES else type(parsed)(value)
        )


def test_every_key_and_no_other_option_has_its_words_for_recipes():
    described = {
        (model, name)
        for module in (check, server_tests, publish, release, serve)
        for model in vars(module).values()
        if inspect.isclass(model) and model.__module__ == module.__name__
        for name, option in options_of(model).items()
        if option.declaration.recipe
    }
    assert described == {(row.model, name) for row in STAGE_OPTIONS.values() for name in row.names}


@pytest.mark.parametrize(("function", "model"), [(api.audit, AuditOptions), (api.compare, CompareOptions)])
def test_defaults_of_the_api_are_those_of_the_command(function, model):
    defaults = {item.name: item.default for item in fields(model) if item.default is not MISSING}
    shared = inspect.signature(function).parameters.keys() & defaults.keys()
    assert len(shared) > 2
    for name in shared:
        assert inspect.signature(function).parameters[name].default == defaults[name], name


def test_what_is_omitted_false_or_none_has_no_arguments():
    assert to_argv(AuditOptions, {"engine": None}, ("sample", "engine")) == ()
    assert stage_argv("publish", {"repo": "a/b", "private": False}) == ("a/b",)
    assert to_argv(AuditOptions, {"sample": 0}, ("sample",)) == ("--sample", "0")
