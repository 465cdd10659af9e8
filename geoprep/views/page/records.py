"""Collect the data of an HTML page about a store, as JSON for a script element."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.palette import (
    BACKGROUND_COLOUR,
    NODATA_GREYS,
    SPEED_COLOURS,
    UNKNOWN_COLOUR,
    bin_label,
    speed_bin,
)
from geoprep.store.reader import StoreReader
from geoprep.store.scenes import scene_grid, scene_roads, scene_shape, scene_splits, valid_share
from geoprep.store.schema import SPLIT_NAMES, SPLITS, STATUSES, StoreMeta
from geoprep.views.display import CLASS_OPACITY, aspect_of, label_title, natural_bands
from geoprep.views.facts import info
from geoprep.views.footprints import LONLAT, outlines

APART = 0.5
"""Scenes farther apart than this, in degrees, belong to different areas with separate maps."""
MOST_SIDE = 4096
"""Length of the longer side of a picture in pixels. Browsers fail to show much larger ones."""
MOST_PIXELS = 128_000_000
"""Pixels of all pictures (75 chips of 1300 x 1300, about 60 MB): those of more are reduced."""
BUILT = ("ok", "unlabelled")
"""Statuses of scenes that have pixels."""


def page_data(store: StoreReader, level: int) -> dict[str, Any]:
    """Return the data of the page without pictures: facts, legend and ``scenes``, a row each."""
    facts = info(store)
    scenes = list(_scenes(store, level))
    pixels = sum(scene["width"] * scene["height"] for scene in scenes if scene["built"])
    for scene in scenes:
        sides = scene["width"], scene["height"]
        step = math.ceil(max(max(sides) / MOST_SIDE, (pixels / MOST_PIXELS) ** 0.5))
        scene["step"] = max(1, min(step, *sides))
    areas = areas_of(scenes)
    for scene, area in zip(scenes, areas, strict=True):
        scene["area"] = area
    bands = [store.meta.bands[i] for i in natural_bands(store.meta.bands)]
    return {
        "title": store.title,
        "facts": {
            key: facts[key]
            for key in ("version", "gsd_m", "tile", "overlap", "rescale", "tiles", "km2",
                        "bytes", "valid_fraction", "statistics")
        } | {"share": facts[store.meta.share_column]},
        "level": level,
        "shown": f"level {level}, bands {', '.join(bands)}, brightness adjusted for display",
        "splits": [*SPLITS, *{scene["split"] for scene in scenes} - {*SPLITS}],
        "statuses": list(STATUSES),
        "legend": _legend(facts, store.meta),
        "words": _words(store.meta),
        "bands": store.histogram_band[:, 1:].tolist(),
        "speeds": [
            {"mph": int(mph), "pixels": pixels, "bin": speed_bin(int(mph))}
            for mph, pixels in facts["speeds"].items()
        ] + [{"mph": "unknown" if store.meta.has_speeds else "road", "pixels": pixels, "bin": 0}
             for pixels in [facts["unknown_speed"]] if pixels]
        + [{"mph": row["name"], "pixels": row["pixels"].get("train", 0), "bin": number}
           for number, row in _shown_classes(facts, store.meta)],
        "areas": [_area_name(scenes, area) for area in range(max(areas, default=-1) + 1)],
        "scenes": scenes,
    }  # fmt: skip


def script_json(data: object) -> str:
    """Return JSON that is safe in a script element: no text in it can end the element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _scenes(store: StoreReader, level: int) -> Iterator[dict[str, Any]]:
    roads, splits, scenes = scene_roads(store), scene_splits(store), store.scenes
    rings, _ = outlines(store, "scene", LONLAT)
    for index, ring in enumerate(rings):
        grid, status = scene_grid(store, index), str(scenes.status[index])
        shape = scene_shape(store, index, level)
        yield {
            "id": str(scenes.id[index]),
            "split": SPLIT_NAMES[splits[index]],
            "status": status,
            "reason": str(scenes.reason[index]),
            "road": round(float(roads[index]), 5),
            "valid": round(valid_share(store, index), 4),
            "width": shape[1],
            "height": shape[0],
            "aspect": round(aspect_of(grid), 4),
            "metres": round(grid.width * grid.gsd_m()[0], 2) if grid is not None else None,
            "crs": "" if grid is None else grid.crs.split("\n")[0][:60],
            "ring": ring and np.round(shapely.get_coordinates(ring)[:-1], 7).tolist(),
            "built": status in BUILT,
        }


def areas_of(scenes: Sequence[dict[str, Any]]) -> list[int]:
    """Return the number of each scene's area; -1 if it is not georeferenced."""
    places = [i for i, scene in enumerate(scenes) if scene["ring"]]
    centres = np.array([np.mean(scenes[i]["ring"], axis=0) for i in places]).reshape(-1, 2)
    columns = [_runs(centres[:, axis]) for axis in (0, 1)]
    numbers: dict[tuple[int, int], int] = {}
    areas = [-1] * len(scenes)
    for i, key in zip(places, zip(*columns, strict=True), strict=True):
        areas[i] = numbers.setdefault(key, len(numbers))
    return areas


def _runs(values: NDArray[np.float64]) -> list[int]:
    """Return for each value the number of its cluster; clusters are separated by `APART`."""
    order = np.argsort(values)
    numbers = np.zeros(len(values), np.int64)
    numbers[order] = np.cumsum(np.diff(values[order], prepend=values[order[:1]]) > APART)
    return numbers.tolist()


def _area_name(scenes: Sequence[dict[str, Any]], area: int) -> str:
    """Return the leading words that all scene ids of an area share."""
    ids = [scene["id"] for scene in scenes if scene["area"] == area]
    columns = zip(*(re.split(r"[\W_]+", scene_id) for scene_id in ids), strict=False)
    words = [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]
    return " ".join(words) or f"area {area + 1}"


def _legend(facts: dict[str, Any], meta: StoreMeta) -> dict[str, Any]:
    """Return the colours and names of classes, or of bins of speed: 0 for unknown, 1 to 7."""
    ground: Sequence[int] = BACKGROUND_COLOUR
    bins: list[tuple[int, str, Sequence[int]]] = []
    if meta.has_classes:
        colours = [bytes.fromhex(colour[1:]) for colour in meta.class_colors]
        ground = colours[0] if meta.has_background else ground
        own = colours[int(meta.has_background) :]
        bins = [(n, row["name"], own[n - 1]) for n, row in _shown_classes(facts, meta)]
    if facts["unknown_speed"] or not (meta.has_classes or meta.has_speeds):
        bins.append((0, "unknown" if meta.has_speeds else "road", UNKNOWN_COLOUR))
    if meta.has_speeds:  # bin 1 only if it occurs
        first = 1 if any(speed_bin(int(mph)) == 1 for mph in facts["speeds"]) else 2
        numbers = range(first, len(SPEED_COLOURS) + 1)
        bins += [(n, bin_label(n), SPEED_COLOURS[n - 1]) for n in numbers]
    return {
        "ground": _css(ground),
        "nodata": [_css(grey) for grey in NODATA_GREYS],
        "bins": {str(n): {"label": label, "colour": _css(colour)} for n, label, colour in bins},
    }


def _words(meta: StoreMeta) -> dict[str, Any]:
    """Return the words of the page that depend on the kind of the labels."""
    counted = f"labelled pixels {meta.share_name}" if meta.has_background else "pixels labelled"
    shown = "pixels of these classes" if meta.has_background else "labelled pixels"
    roads_and_classes = {
        "share": ("road", meta.share_name),
        "tile": ("of labelled pixels road", f"of {counted}"),
        "labels": ("roads", "classes"),
        "unit": (" mph", ""),
        "unknown": ("road of unknown speed", ""),
        "chart": ("Road pixels per speed", "Pixels per class"),
        "pixels": ("road pixels", shown),
        "note": (
            "mph, share of the training scenes' road",
            f"share of the training scenes' {shown}",
        ),
        "none": ("no roads in the training scenes", "no classes in the training scenes"),
        "background": (True, meta.has_background),
        "opacity": (75, round(100 * CLASS_OPACITY)),
    }
    words = {name: texts[meta.has_classes] for name, texts in roads_and_classes.items()}
    words["label"] = label_title(meta)
    if words["label"] == "road":
        note = "share of the training scenes' road"
        words |= {"unit": "", "unknown": "road", "chart": "Road pixels", "note": note}
    return words


def _shown_classes(facts: dict[str, Any], meta: StoreMeta) -> list[tuple[int, dict[str, Any]]]:
    """Return the classes without background, numbered from 1."""
    own = int(meta.has_background)
    return list(enumerate(facts["classes"][own:], 1))


def _css(colour: Sequence[int]) -> str:
    return f"rgb({colour[0]},{colour[1]},{colour[2]})"
