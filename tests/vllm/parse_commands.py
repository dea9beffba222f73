"""Parse commands with vLLM's own parser and check every choice that the parser leaves open. Runs in its own process.

Reads a JSON list of commands (lists of words after `vllm`), prints a JSON object: the index of each command that vLLM
would reject, with the error.
"""

import argparse
import contextlib
import dataclasses
import io
import json
import sys
from pathlib import Path


def main() -> None:
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm")
    ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))
    problems = {}
    for index, words in enumerate(json.loads(Path(sys.argv[1]).read_text())):
        problem = problem_of(parser, words)
        if problem:
            problems[index] = problem
    print(json.dumps(problems))


def problem_of(parser: argparse.ArgumentParser, words: list[str]) -> str | None:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            args = parser.parse_args(words)
    except SystemExit:
        return said.getvalue().strip()[-500:]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    try:
        check_choices(args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def check_choices(args: argparse.Namespace) -> None:
    """Check values that the parser accepts as text and vLLM resolves later."""
    from vllm.config import AttentionConfig, CompilationConfig, SpeculativeConfig
    from vllm.entrypoints.launchers.cli_args import validate_parsed_serve_args
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    validate_parsed_serve_args(args)
    if args.attention_backend:
        _known(args.attention_backend, AttentionBackendEnum.__members__)
    if args.tool_call_parser:
        ToolParserManager.get_tool_parser(args.tool_call_parser)
    if args.reasoning_parser:
        ReasoningParserManager.get_reasoning_parser(args.reasoning_parser)
    if args.speculative_config:
        for key in args.speculative_config:
            _known(key, {field.name for field in dataclasses.fields(SpeculativeConfig)})
        if "attention_backend" in args.speculative_config:
            _known(args.speculative_config["attention_backend"], AttentionBackendEnum.__members__)
    for value, kind in ((args.attention_config, AttentionConfig), (args.compilation_config, CompilationConfig)):
        assert isinstance(value, kind), f"{value!r} is no {kind.__name__}"


def _known(name: str, names) -> None:
    if name not in names:
        raise ValueError(f"vLLM knows no '{name}'")


if __name__ == "__main__":
    main()
