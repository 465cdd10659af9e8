"""Sphinx directive that documents public names: a table of them, then each in full."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


def _kind(value: object) -> str:
    if inspect.isclass(value):
        return "autoexception" if issubclass(value, Exception) else "autoclass"
    return "autofunction" if callable(value) else "autodata"


class PublicNames(SphinxDirective):
    """``public-names PACKAGE``: its names, one per line, summarised and then documented."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the generated reStructuredText."""
        package = self.arguments[0]
        return self._parsed(list(self._lines(package, list(self.content))))

    def _lines(self, package: str, names: list[str]) -> Iterator[str]:
        module = importlib.import_module(package)
        yield from (
            f".. currentmodule:: {package}",
            "",
            ".. autosummary::",
            "   :nosignatures:",
            "",
        )
        yield from (f"   {name}" for name in names)
        yield ""
        for name in names:
            kind = _kind(getattr(module, name))
            yield f".. {kind}:: {name}"
            if kind == "autoclass":
                yield from (
                    "   :members:",
                    "   :inherited-members: Module, tuple, int, str, Sampler",
                )
            yield ""

    def _parsed(self, lines: list[str]) -> list[nodes.Node]:
        """Return reStructuredText as nodes, from a page of Markdown."""
        eval_rst = ["```{eval-rst}", *lines, "```"]
        return self.parse_text_to_nodes("\n".join(eval_rst))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("public-names", PublicNames)
    return {"parallel_read_safe": True}
