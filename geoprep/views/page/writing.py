"""Write the HTML page of a store: encode scenes in rounds, then rename the finished file."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from geoprep.executors.threads import Threads
from geoprep.outputs import check_outputs, require_suffix
from geoprep.storage.output_files import replaced
from geoprep.store.reader import StoreReader
from geoprep.views.display import brightness_table
from geoprep.views.page.pictures import scene_pictures
from geoprep.views.page.records import page_data, script_json

PER_ROUND = 16
"""Scenes per worker thread that are encoded, and held in memory, before they are written."""
SCRIPTS = ("base.js", "charts.js", "map.js", "viewer.js", "main.js")
KINDS = {"image": "jpeg", "mask": "png", "thumb": "jpeg", "roads": "png"}


def make_page(
    store: StoreReader,
    out: Path,
    *,
    level: int | None = None,
    overwrite: bool = False,
    report: Callable[[int, int], None] | None = None,
) -> Path:
    """Write an HTML page of a whole store: thumbnails, filters, a map and a viewer."""
    require_suffix(out, ".html", ".htm")
    check_outputs(out, inputs=[store.location], overwrite=overwrite)
    level = store.check_level(level)
    data = page_data(store, level)
    encoded = _encoded(store, level, data["scenes"], report)
    with replaced(out) as page:
        _write(page, data, _inline(encoded))
    return out


def _encoded(
    store: StoreReader,
    level: int,
    scenes: Sequence[dict[str, Any]],
    report: Callable[[int, int], None] | None,
) -> Iterator[tuple[int, dict[str, bytes]]]:
    """Yield (index, pictures) of all scenes that have pixels, in the order of the store."""
    for name in store.meta.array_names:  # reads the tables once, before threads need them
        store.layout(level, name)
    brighten = brightness_table(store)

    def encode(index: int) -> dict[str, bytes]:
        return scene_pictures(store, index, level, scenes[index]["step"], brighten)

    built = [index for index, scene in enumerate(scenes) if scene["built"]]
    executor = Threads()
    step = PER_ROUND * executor.workers
    for first in range(0, len(built), step):
        some = built[first : first + step]
        yield from zip(some, executor.map_ordered(encode, some), strict=True)
        if report:
            report(min(first + step, len(built)), len(built))


def _inline(encoded: Iterator[tuple[int, dict[str, bytes]]]) -> Iterator[str]:
    """Yield script elements with pictures as base64, which the browser decodes when shown."""
    for index, pictures in encoded:
        for kind, suffix in KINDS.items():
            text = base64.b64encode(pictures[kind]).decode("ascii")
            yield f'<script type="image/{suffix}" id="{kind}-{index}">{text}</script>\n'


def _write(path: Path, data: dict[str, Any], blocks: Iterable[str]) -> None:
    """Write the page: HTML, data, pictures, and the script at the end."""
    script = '"use strict";\n{\n' + "\n".join(map(_asset, SCRIPTS)) + "}\n"
    frame = _filled(_asset("page.html"), data["title"], script)
    for name, word in data["words"].items():
        frame = frame.replace(f"{{{{{name.upper()}}}}}", html.escape(str(word)))
    head, tail = frame.split("{{DATA}}")
    with path.open("w", encoding="utf-8") as file:
        file.write(head)
        file.write(f'<script type="application/json" id="data">{script_json(data)}</script>\n')
        file.writelines(blocks)
        file.write(tail.replace("{{SCRIPT}}", script))


def _filled(frame: str, title: str, script: str) -> str:
    """Return HTML with its title, style, and the hashes of style and script."""
    style = _asset("page.css")
    for name, text in {
        "TITLE": html.escape(title).replace("{", "&#123;"),  # no name of another part
        "STYLE_HASH": _hash(style),
        "SCRIPT_HASH": _hash(script),
        "STYLE": style,
    }.items():
        frame = frame.replace(f"{{{{{name}}}}}", text)
    return frame


def _asset(name: str) -> str:
    return files("geoprep.views.page").joinpath("browser", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the hash of a text for the page's Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
