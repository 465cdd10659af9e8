"""Sphinx directive that lists the modules of the packages by their docstrings."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

REPO = Path(__file__).resolve().parents[2]


class ModuleTables(SphinxDirective):
    """``module-tables``: a table per package, its modules and their first sentences."""

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the generated Markdown."""
        return self.parse_text_to_nodes("\n".join(self._lines()))

    def _lines(self) -> Iterator[str]:
        for name, modules in module_rows():
            about = _first_line(REPO.joinpath(*name.split("."), "__init__.py"))
            yield from ("", f"| `{name}` | {about} |", "|---|---|")
            yield from (f"| `{module}` | {text} |" for module, text in modules)


def module_rows() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield each package with its modules and the first sentences of their docstrings."""
    for package in ("geoprep", "loaders", "training"):
        files = [p for p in sorted((REPO / package).rglob("*.py")) if not p.stem.startswith("__")]
        for folder in sorted({path.parent for path in files}):
            modules = [(p.stem, _first_line(p)) for p in files if p.parent == folder]
            yield ".".join(folder.relative_to(REPO).parts), modules


def _first_line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return text.partition("\n")[0].replace("|", r"\|")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("module-tables", ModuleTables)
    return {"parallel_read_safe": True}
