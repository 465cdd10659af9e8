"""Sphinx directives that list options and settings from their declarations in the code."""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import MISSING
from typing import Any, NoReturn
from unittest import mock

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from geoprep.cli.help import name_options
from geoprep.options import settings_of
from training.settings import SECTIONS

TRAINING = ("fit", "pretrain", "evaluate", "predict", "export")
BENCHMARKS = (
    *("preprocess", "loaders", "training", "accelerators", "inference", "roads", "scaling"),
    "faults",
)


class _ParserError(Exception):
    """Carries the parser of a command that was about to parse its arguments."""


def training_sections(command: str) -> Sequence[type[Any]]:
    """Return the groups of options of ``python -m training.COMMAND``: dataclasses."""
    if command == "fit":
        return SECTIONS
    module = importlib.import_module(f"training.{command}")
    options: type[Any] = getattr(module, f"{command.capitalize()}Options")
    return (*options.__bases__, options)


def benchmark_parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of ``python -m benchmarks.NAME`` without running the benchmark."""

    def stop(parser: argparse.ArgumentParser, *_: object, **__: object) -> NoReturn:
        raise _ParserError(parser)

    module = importlib.import_module(f"benchmarks.{name}")
    with mock.patch.object(argparse.ArgumentParser, "parse_args", stop):
        try:
            module.main([])
        except _ParserError as found:
            parser: argparse.ArgumentParser = found.args[0]
            return parser
    raise TypeError(f"benchmarks.{name} parses no arguments")


def _escaped(line: str) -> str:
    """Return a line of a help text as reStructuredText: file patterns are no markup."""
    return line if "``" in line else re.sub(r"\*|_(?=\W|$)", r"\\\g<0>", line)


def _shown(value: object) -> str:
    return (
        "none" if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"
    )


def _option(names: str, text: str) -> str:
    return f"::::{{option}} {names}\n{text}\n::::\n"


class _Generated(SphinxDirective):
    """A directive whose content is Markdown made from declarations."""

    required_arguments = 0
    has_content = False

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes("\n".join(self.lines()), allow_section_headings=True)

    def lines(self) -> Iterator[str]:
        raise NotImplementedError


class TrainingOptions(_Generated):
    """``training-options``: the options of a ``python -m training`` command, by group."""

    required_arguments = 1

    def lines(self) -> Iterator[str]:
        """Yield the Markdown of the help text."""
        command = self.arguments[0]
        module = importlib.import_module(f"training.{command}")
        yield from ("```{code-block} none", module.INTRODUCTION.rstrip(), "```", "")
        yield from (f"```{{program}} python -m training.{command}", "```", "")
        listed: set[str] = set()
        for section in training_sections(command):
            settings = [one for one in settings_of(section).values() if one.name not in listed]
            if not settings:
                continue
            listed |= {setting.name for setting in settings}
            title, _, about = (section.__doc__ or "").rstrip(".").partition(": ")
            yield from (f"**{title}**: {about}.", "")
            for setting in settings:
                text = setting.help
                if setting.positional:
                    yield from (f"`{setting.metavar}{' ...' * setting.several}`", f": {text}", "")
                    continue
                names = setting.flag
                if setting.kinds != (bool,):
                    names += f" {setting.metavar}"
                    known = setting.default is not None and setting.default is not MISSING
                    text += f" Default: {_shown(setting.default)}." if known else ""
                    text += f" Valid: {setting.range}." if setting.bounds else ""
                yield _option(names, text)
        if command == "fit":
            yield _option("--config FILE", "YAML file of settings; options override it.")
            yield module.CLOSING


class BenchmarkOptions(_Generated):
    """``benchmark-options``: the options of a ``python -m benchmarks`` command."""

    required_arguments = 1

    def lines(self) -> Iterator[str]:
        """Yield the Markdown of the help text."""
        name = self.arguments[0]
        parser = benchmark_parser(name)
        yield from (inspect.cleandoc(parser.description or ""), "")
        yield from (f"```{{program}} python -m benchmarks.{name}", "```", "")
        for action in parser._get_optional_actions():  # argparse has no public list of options
            if action.help == argparse.SUPPRESS or "--help" in action.option_strings:
                continue
            value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
            text = (action.help or "").replace("%%", "%")
            yield _option(", ".join(action.option_strings) + value, text)


class SettingsTable(_Generated):
    """``settings-table``: every setting of a run, with type, default, range and meaning."""

    def lines(self) -> Iterator[str]:
        """Yield one table per group of settings."""
        for section in SECTIONS:
            title, _, about = (section.__doc__ or "").rstrip(".").partition(": ")
            yield from (f"## {title}", "", f"{about[:1].upper()}{about[1:]}.", "")
            yield from ("::::{container} settings", "| setting | meaning | values | default |")
            yield "|---|---|---|---|"
            for setting in settings_of(section).values():
                values = "true|false" if setting.kinds == (bool,) else setting.metavar
                values += f", {setting.range}" if setting.bounds else ""
                values = values.replace("|", r" \| ")
                default = "" if setting.default is MISSING else _shown(setting.default)
                default = "" if setting.positional else default
                text = setting.help.replace("|", r"\|")
                yield f"| `{setting.name}` | {text} | {values} | {default} |"
            yield from ("::::", "")


def name_click_options(_: Sphinx, context: Any, lines: list[str]) -> None:  # noqa: ANN401 - click's
    """Write options in place of parameters in the text of ``geoprep``'s options."""
    lines[:] = [_escaped(name_options(line, context)) for line in lines]


def show_examples(_: Sphinx, __: Any, lines: list[str]) -> None:  # noqa: ANN401 - click's
    """Turn the examples of a help text, line blocks of sphinx-click, into literal blocks."""
    result: list[str] = []
    for line in lines:
        if not line.startswith("| "):
            result.append(_escaped(line))
            continue
        if not (result and result[-1].startswith("   ")):
            result += [".. code-block:: none", ""]
        result.append(f"   {line[2:].rstrip()}" if line.strip() != "|" else "")
    lines[:] = result


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("training-options", TrainingOptions)
    app.add_directive("benchmark-options", BenchmarkOptions)
    app.add_directive("settings-table", SettingsTable)
    app.connect("sphinx-click-process-description", show_examples)
    app.connect("sphinx-click-process-options", name_click_options)
    return {"parallel_read_safe": True}
