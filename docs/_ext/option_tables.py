"""Sphinx directives that list options and settings from their declarations in the code."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import MISSING
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from geoprep.cli.help import name_options
from geoprep.options import Setting, settings_of
from training.settings import SECTIONS

TRAINING = {name: name for name in ("fit", "evaluate", "predict")}
TRAINING["export-model"] = "export"
"""Commands of ``geoprep`` and their modules of `training`."""
BENCHMARKS = (
    *("preprocess", "loaders", "training", "advice", "accelerators", "inference", "roads"),
    *("scaling", "learning"),
)


def sections_of(program: str, command: str) -> Sequence[type[Any]]:
    """Return the groups of options of a module of a program: dataclasses."""
    if (program, command) == ("training", "fit"):
        return SECTIONS
    module = importlib.import_module(f"{program}.{command}")
    options: type[Any] = getattr(module, f"{command.capitalize()}Options")
    return (*options.__bases__, options) if program == "training" else (options,)


def _escaped(line: str) -> str:
    """Return a line of a help text as reStructuredText: file patterns are no markup."""
    return line if "``" in line else re.sub(r"\*|_(?=\W|$)", r"\\\g<0>", line)


def _shown(value: object) -> str:
    return (
        "none" if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"
    )


def _option(names: str, text: str) -> str:
    return f"::::{{option}} {names}\n{text}\n::::\n"


def _entry(setting: Setting) -> str:
    """Return the Markdown of an option or argument, with its default and range."""
    if setting.positional:
        return f"`{setting.metavar}{' ...' * setting.several}`\n: {setting.help}\n"
    if setting.kinds == (bool,):
        return _option(setting.flag, setting.help)
    text = setting.help
    known = setting.default is not None and setting.default is not MISSING
    text += f" Default: {_shown(setting.default)}." if known else ""
    text += f" Valid: {setting.range}." if setting.bounds else ""
    return _option(f"{setting.flag} {setting.metavar}", text)


class _Generated(SphinxDirective):
    """A directive whose content is Markdown made from declarations."""

    required_arguments = 0
    has_content = False

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes("\n".join(self.lines()), allow_section_headings=True)

    def lines(self) -> Iterator[str]:
        raise NotImplementedError


class TrainingOptions(_Generated):
    """``training-options``: the options of a command of `training`, by group."""

    required_arguments = 1

    def lines(self) -> Iterator[str]:
        """Yield the Markdown of the help text."""
        name = self.arguments[0]
        command = TRAINING[name]
        module = importlib.import_module(f"training.{command}")
        yield from ("```{code-block} none", module.COMMAND.help.replace("\b\n", ""), "```", "")
        yield from (f"```{{program}} geoprep {name}", "```", "")
        listed: set[str] = set()
        for section in sections_of("training", command):
            settings = [one for one in settings_of(section).values() if one.name not in listed]
            if not settings:
                continue
            listed |= {setting.name for setting in settings}
            title, _, about = (section.__doc__ or "").rstrip(".").partition(": ")
            yield from (f"**{title}**: {about}.", "")
            yield from map(_entry, settings)
        if command == "fit":
            yield _option("--config FILE", "YAML file of settings; options override it.")
            yield module.CLOSING


class BenchmarkOptions(_Generated):
    """``benchmark-options``: the options of a ``python -m benchmarks`` command."""

    required_arguments = 1

    def lines(self) -> Iterator[str]:
        """Yield the Markdown of the help text."""
        name = self.arguments[0]
        module = importlib.import_module(f"benchmarks.{name}")
        yield from (inspect.cleandoc(module.__doc__ or ""), "")
        yield from (f"```{{program}} python -m benchmarks.{name}", "```", "")
        (record,) = sections_of("benchmarks", name)
        yield from map(_entry, settings_of(record).values())


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
