"""Write the HTML page of a store: encode scenes in rounds, then rename the finished file."""

from __future__ import annotations

import base64
import hashlib
import html
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from geoprep.errors import OutputError
from geoprep.executors.threads import Threads
from geoprep.outputs import check_outputs, require_suffix
from geoprep.storage.failures import errors_named
from geoprep.storage.local_files import make_folder
from geoprep.storage.output_files import replaced
from geoprep.store.reader import StoreReader
from geoprep.views.display import brightness_table
from geoprep.views.page.pictures import scene_pictures
from geoprep.views.page.records import page_data, script_json

MOST_PIXELS = 128_000_000
"""Above this number of pixels (75 chips of 1300 x 1300, about 60 MB), pictures are written to the
folder ``NAME_files`` beside the page."""
PER_ROUND = 16
"""Scenes per worker thread that are encoded, and held in memory, before they are written."""
KINDS = {"image": "jpg", "mask": "png", "thumb": "jpg", "roads": "png"}
SCRIPTS = ("base.js", "charts.js", "map.js", "viewer.js", "main.js")
MIME = {"jpg": "image/jpeg", "png": "image/png"}


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
    pixels = sum(scene["width"] * scene["height"] / scene["step"] ** 2 for scene in data["scenes"])
    encoded = _encoded(store, level, data["scenes"], report)
    with replaced(out) as page:
        if pixels <= MOST_PIXELS:
            _write(page, {**data, "folder": ""}, _inline(encoded))
            return out
        with _asset_folder(out) as folder:
            _fill(folder, encoded)
            _write(page, {**data, "folder": f"{folder.parent.name}/{folder.name}"}, ())
    _remove_older(folder)
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
    encode = partial(scene_pictures, store, level=level, brighten=brightness_table(store))
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
            yield f'<script type="{MIME[suffix]}" id="{kind}-{index}">{text}</script>\n'


def _fill(folder: Path, encoded: Iterator[tuple[int, dict[str, bytes]]]) -> None:
    with errors_named(folder, OutputError):
        for index, pictures in encoded:
            for kind, suffix in KINDS.items():
                (folder / f"{kind}-{index}.{suffix}").write_bytes(pictures[kind])


@contextmanager
def _asset_folder(out: Path) -> Iterator[Path]:
    """Yield a new folder for the pictures of a page, which is removed if the block fails."""
    # The pictures of an older page stay until the new page replaces it.
    folder = make_folder(out.with_name(f"{out.stem}_files")) / secrets.token_hex(8)
    with errors_named(folder, OutputError):
        folder.mkdir()
        try:
            yield folder
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _remove_older(kept: Path) -> None:
    """Remove the pictures of replaced pages and of interrupted runs."""
    for folder in kept.parent.iterdir():
        own = re.fullmatch(r"[0-9a-f]{16}|\.[0-9a-f]{16}\.partial", folder.name)
        if own and folder != kept:
            shutil.rmtree(folder, ignore_errors=True)


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
