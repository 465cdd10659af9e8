"""Write an evaluation as an HTML page: tables, and pictures of the worst and best scenes."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from geoprep.storage.output_files import replaced
from geoprep.views.page import static_page
from training.pictures import Example, draw_examples

Table = tuple[Sequence[str], Iterable[Sequence[str]], int]
"""Titles, rows of text, and the width of a terminal that it needs; 0 for any."""


def write_report(
    path: Path,
    title: str,
    lines: Sequence[str],
    tables: Iterable[Table],
    pictures: Mapping[str, Sequence[Example]],
    bands: Sequence[str],
) -> None:
    """Write the page: the last table first, then pictures by their captions, and other tables."""
    *others, standing = tables
    parts = [*(f"<p>{escape(line)}</p>" for line in lines), _table(standing)]
    with TemporaryDirectory() as folder:
        for caption, examples in pictures.items():
            file = Path(folder) / "picture.png"
            draw_examples(file, examples, bands, "")
            data = base64.b64encode(file.read_bytes()).decode("ascii")
            image = f'<img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
            parts.append(f"<h2>{escape(caption)}</h2>{image}")
    parts += map(_table, others)
    panels = "\n".join(f'<article class="panel">{part}</article>' for part in parts)
    head = f'<header class="top"><h1>{escape(title)}</h1></header>'
    body = f'{head}\n<section class="report">\n{panels}\n</section>'
    with replaced(path) as partial:
        partial.write_text(static_page(title, body), encoding="utf-8")


def _table(table: Table) -> str:
    titles, rows, _ = table
    lines = [("th", titles), *(("td", row) for row in rows)]
    cells = ("".join(f"<{tag}>{escape(text)}</{tag}>" for text in row) for tag, row in lines)
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in cells)}</table>"
