"""Facts about a store: as plain values, and formatted for a terminal."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from geoprep.grid import MIXED_SIZES
from geoprep.palette import SPEED_COLOURS, UNKNOWN_COLOUR, bin_label, speed_bin
from geoprep.speed import BACKGROUND, UNKNOWN_SPEED
from geoprep.storage.places import Files
from geoprep.store.reader import StoreReader
from geoprep.store.scenes import (
    class_counts,
    road_fraction,
    scene_grid,
    scene_issues,
    usable_tiles,
    valid_pixels,
)
from geoprep.store.schema import SHARE_COLUMNS, SPLIT_NAMES, SPLITS, STATUSES
from geoprep.texts import counted

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

SHOWN_ISSUES = 8
BAR_WIDTH = 32
WORKER_PROCESS = 8_000_000
"""Bytes of its own of a forked worker process of torch's DataLoader, besides its batches."""


def info(
    store: StoreReader,
    *,
    scenes: bool = False,
    batch_size: int = 8,
    crop: int = 256,
    workers: int = 4,
) -> dict[str, Any]:
    """Return all facts about a store as plain JSON values; with ``scenes``, a row per scene too."""
    meta, files = store.meta, Files(store.location)
    usable = usable_tiles(store)
    valid, known, km2 = valid_pixels(store).sum(axis=0).tolist()
    facts = {
        "store": store.location,
        "title": store.title,
        "schema": meta.schema,
        "version": meta.version,
        "cities": list(meta.cities),
        "bands": list(meta.bands),
        "gsd_m": list(meta.gsd_m),
        "gsd_range_m": _gsd_range(store),
        "tile": meta.tile,
        "overlap": meta.overlap,
        "rescale": meta.rescale,
        "codec": meta.codec,
        "tiles": len(store.tiles),
        "scenes": len(store.scenes),
        "bytes": sum(files.sizes.values()),
        "km2": km2,
        meta.share_column: road_fraction(store, usable),
        "valid_fraction": valid / known if known else 0.0,
        "levels": [_level(store, files, level) for level in meta.levels],
        "splits": {
            name: _split(store, usable, i)
            for i, name in enumerate(SPLIT_NAMES)
            if name in SPLITS or (store.tiles.split == i).any()
        },
        "statuses": {status: int((store.scenes.status == status).sum()) for status in STATUSES},
        "issues": [
            {"scene": scene, "status": status, "reason": reason}
            for scene, status, reason in scene_issues(store)
        ],
        "statistics": _statistics(store),
        "speed_unit": meta.speed_unit,
        "label_array": meta.label_array,
        "share_name": meta.share_name,
        "kind": meta.kind,
        **_label_facts(store),
        "notes": dict(meta.build.get("notes", {})),
    }
    facts["memory"] = _memory(facts, batch_size, crop, workers)
    return {**facts, "scene_table": _scene_table(store)} if scenes else facts


def _gsd_range(store: StoreReader) -> list[float]:
    """Return the smallest and the largest pixel size of scenes in metres.

    Of scenes with equal pixels in one CRS, one is measured.
    """
    tiles = store.tiles
    pixels, scenes = tiles.transform[:, [0, 1, 3, 4]].tolist(), tiles.scene.tolist()
    kinds = zip(store.scenes.crs[tiles.scene].tolist(), map(tuple, pixels), strict=True)
    grids = [scene_grid(store, scene) for scene in dict(zip(kinds, scenes, strict=True)).values()]
    sizes = [max(grid.gsd_m()) for grid in grids if grid] or [max(store.meta.gsd_m)]
    return [round(min(sizes), 4), round(max(sizes), 4)]


def _level(store: StoreReader, files: Files, level: int) -> dict[str, Any]:
    factor = store.meta.tile // level
    shape = [len(store.tiles), level, level]
    shapes = {"image": [*shape, len(store.meta.bands)], store.meta.label_array: shape}
    arrays = {}
    for name in store.meta.array_names:
        stored, full = files.bytes_under(f"{level}/{name}"), math.prod(shapes[name])
        arrays[name] = {
            "shape": shapes[name],
            "bytes": full,
            "stored": stored,
            "ratio": full / stored if stored else None,
        }
    return {
        "level": level,
        "gsd_m": [round(gsd * factor, 4) for gsd in store.meta.gsd_m],
        **arrays,
        "ram_bytes": sum(entry["bytes"] for entry in arrays.values()),
    }


def _split(store: StoreReader, usable: NDArray[np.bool_], split: int) -> dict[str, Any]:
    """Count scenes and tiles of a split; ``ram_bytes`` is the size of its usable tiles."""
    chosen = store.tiles.split == split
    ready = chosen & usable
    per_tile = len(store.meta.bands) + 1
    return {
        "scenes": len(np.unique(store.tiles.scene[chosen])),
        "tiles": int(chosen.sum()),
        "usable_tiles": int(ready.sum()),
        store.meta.share_column: road_fraction(store, ready),
        "ram_bytes": {
            str(level): int(ready.sum()) * level**2 * per_tile for level in store.meta.levels
        },
    }


def _memory(facts: dict[str, Any], batch_size: int, crop: int, workers: int) -> dict[str, Any]:
    """Return the bytes of tiles and loader by level, as docs/how-to/memory.md has them."""
    levels = {}
    for entry in facts["levels"]:
        level = str(entry["level"])
        batch = batch_size * min(crop, entry["level"]) ** 2 * (len(facts["bands"]) + 1)
        tiles = sum(facts["splits"][name]["ram_bytes"][level] for name in ("train", "val"))
        parts = {"tiles": tiles, "batch": batch, "loader": (workers + 2) * batch}
        total = {"total": tiles + parts["loader"]}
        levels[level] = {**parts, **total, "worker_process": batch + WORKER_PROCESS}
    return {"batch_size": batch_size, "crop": crop, "workers": workers, "levels": levels}


def _scene_table(store: StoreReader) -> list[dict[str, Any]]:
    import pandas as pd

    from geoprep.views.footprints import columns_of  # imports shapely

    table = pd.DataFrame(columns_of(store, "scene")).drop(columns="crs")
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def _statistics(store: StoreReader) -> list[dict[str, Any]]:
    values = np.arange(256, dtype=np.float64)
    result = []
    for name, counts in zip(store.meta.bands, store.histogram_band, strict=True):
        pixels = int(counts[1:].sum())
        mean = std = None
        if pixels:
            mean = float((values * counts).sum() / pixels)
            std = float(np.sqrt((counts[1:] * (values[1:] - mean) ** 2).sum() / pixels))
        result.append({"band": name, "pixels": pixels, "mean": mean, "std": std})
    return result


def _label_facts(store: StoreReader) -> dict[str, Any]:
    """Return the pixels per speed of the training split, or per class of every split."""
    meta = store.meta
    if not meta.has_classes:
        counts = store.histogram_speed.tolist()
        known = range(BACKGROUND + 1, UNKNOWN_SPEED)
        speeds = {str(mph): counts[mph] for mph in known if counts[mph]}
        return {"speeds": speeds, "unknown_speed": counts[UNKNOWN_SPEED], "classes": []}
    of_splits = class_counts(store).items()
    classes = [
        {
            "name": name,
            "color": color,
            "pixels": {split: counts_of[name] for split, counts_of in of_splits},
        }
        for name, color in zip(meta.class_names, meta.class_colors, strict=True)
    ]
    return {"speeds": {}, "unknown_speed": 0, "classes": classes}


def render(facts: dict[str, Any]) -> RenderableType:
    """Return the facts of :func:`info` as tables for a terminal."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [_heading(facts), _levels_table(facts), _splits_table(facts)]
    parts += [_memory_table(facts["memory"]), _bands_table(facts)]
    if facts["speeds"] or facts["unknown_speed"]:
        parts.append(_speeds_table(facts))
    if facts["classes"] and facts["classes"][0]["pixels"]:
        parts.append(_classes_table(facts["classes"]))
    if facts["notes"]:
        notes = (f"  {note}: {count:,}" for note, count in facts["notes"].items())
        parts.append(
            Text("remarks on the labels, and defaults that were used\n" + "\n".join(notes))
        )
    if "scene_table" in facts:
        parts.append(_scenes_table(facts))
    if facts["issues"]:
        parts.append(_issues_list(facts["issues"], capped="scene_table" not in facts))
    spaced = [part for each in parts for part in (each, Text())]
    return Group(*spaced[:-1])


def _heading(facts: dict[str, Any]) -> RenderableType:
    from rich.text import Text

    gsd_x, gsd_y = facts["gsd_m"]
    statuses = ", ".join(f"{n} {status}" for status, n in facts["statuses"].items() if n)
    text = Text()
    text.append(facts["title"], "bold")
    text.append(f"  {facts['store']}  {_bytes(facts['bytes'])} on disk\n", "dim")
    text.append(f"{counted(facts['tiles'], 'tile')} of {facts['tile']} px")
    text.append(f", overlap {facts['overlap']} px" if facts["overlap"] else "")
    text.append(f", from {counted(facts['scenes'], 'scene')} ({statuses})\n")
    low, high = facts["gsd_range_m"]
    size = f"{gsd_x:.2f} × {gsd_y:.2f}"
    size = f"{low:.2f} to {high:.2f}" if high > MIXED_SIZES * low else size
    text.append(f"{facts['km2']:.3g} km² of imagery at {size} m per pixel, ")
    text.append(f"{facts['valid_fraction']:.1%} of the scenes' pixels valid, ")
    labelled = facts["statuses"]["ok"]
    share = f"{facts[SHARE_COLUMNS[facts['kind']]]:.2%} of the labelled ones {facts['share_name']}"
    if facts["share_name"] == "labelled":
        share = f"{facts[SHARE_COLUMNS[facts['kind']]]:.2%} labelled"
    text.append(share if labelled else "none labelled")
    return text


def _levels_table(facts: dict[str, Any]) -> Table:
    label = f">{facts['label_array']} on disk"
    table = _table("level", ">pixel (m)", ">image on disk", label, ">all in RAM")
    for level in facts["levels"]:
        gsd_x, gsd_y = level["gsd_m"]
        stored = [
            f"{_bytes(level[name]['stored'])}, 1:{level[name]['ratio'] or 0:.1f}"
            for name in ("image", facts["label_array"])
        ]
        shape = " × ".join(map(str, level["image"]["shape"][1:]))
        table.add_row(shape, f"{gsd_x:.2f} × {gsd_y:.2f}", *stored, _bytes(level["ram_bytes"]))
    return table


def _splits_table(facts: dict[str, Any]) -> Table:
    levels = [str(level["level"]) for level in facts["levels"]]
    ram = (f">RAM at {level}" for level in levels)
    table = _table("split", ">scenes", ">tiles", ">usable", f">{facts['share_name']}", *ram)
    for name, split in facts["splits"].items():
        if not split["tiles"]:
            continue
        counts = [f"{split[key]:,}" for key in ("scenes", "tiles", "usable_tiles")]
        sizes = [_bytes(split["ram_bytes"][level]) for level in levels]
        table.add_row(name, *counts, f"{split[SHARE_COLUMNS[facts['kind']]]:.2%}", *sizes)
    return table


def _memory_table(memory: dict[str, Any]) -> Table:
    workers, crop = memory["workers"], memory["crop"]
    loader = f">loader, {counted(workers, 'worker')}"
    each = ">each worker", ">as a process"
    table = _table("memory at", ">tiles, train and val", *each, loader, ">together")
    for level, parts in memory["levels"].items():
        names = ("tiles", "batch", "worker_process", "loader", "total")
        table.add_row(level, *(_bytes(parts[name]) for name in names))
    table.caption = (
        f"tiles once per machine; {memory['batch_size']} crops of {crop} px per batch: "
        "--batch-size, --crop"
    )
    table.caption_justify = "left"
    return table


def _bands_table(facts: dict[str, Any]) -> Table:
    table = _table("band", ">mean", ">std", ">valid training pixels")
    for band in facts["statistics"]:
        figures = ["–" if band[key] is None else f"{band[key]:.1f}" for key in ("mean", "std")]
        table.add_row(band["band"], *figures, f"{band['pixels']:,}")
    table.caption = f"values 1–255, rescale {facts['rescale']}"
    table.caption_justify = "left"
    return table


def _speeds_table(facts: dict[str, Any]) -> Table:
    """Return a bar chart of the training split's road pixels per speed."""
    from rich.text import Text

    counts = {int(mph): pixels for mph, pixels in facts["speeds"].items()}
    total = sum(counts.values()) + facts["unknown_speed"]
    binned = Counter[int]()
    for mph, pixels in counts.items():
        binned[speed_bin(mph)] += pixels
    rows = [(bin_label(number), number, binned[number]) for number in sorted(binned)]
    if facts["unknown_speed"]:
        rows.append(("unknown", 0, facts["unknown_speed"]))
    table = _table(">mph", ">share of road", "")
    most = max(pixels for _, _, pixels in rows)
    for label, number, pixels in rows:
        red, green, blue = SPEED_COLOURS[number - 1] if number else UNKNOWN_COLOUR
        bar = "█" * max(1, round(BAR_WIDTH * pixels / most))
        table.add_row(label, f"{pixels / total:.1%}", Text(bar, f"rgb({red},{green},{blue})"))
    return table


def _classes_table(classes: list[dict[str, Any]]) -> Table:
    """Return a table of the share of every class among the labelled pixels of each split."""
    from rich.text import Text

    splits = list(classes[0]["pixels"])
    totals = {split: sum(row["pixels"][split] for row in classes) for split in splits}
    table = _table("class", *(f">{split}" for split in splits), "")
    shares = [
        {n: row["pixels"][n] / totals[n] if totals[n] else 0.0 for n in splits} for row in classes
    ]
    most = max(max(of_class.values()) for of_class in shares) or 1.0
    for row, of_class in zip(classes, shares, strict=True):
        bar = "█" * round(BAR_WIDTH * of_class[splits[0]] / most)
        figures = [f"{of_class[n]:.2%}" if row["pixels"][n] else "none" for n in splits]
        table.add_row(row["name"], *figures, Text(bar, row["color"]))
    return table


def _scenes_table(facts: dict[str, Any]) -> Table:
    table = _table("scene", "split", ">tiles", f">{facts['share_name']}", ">valid", "status")
    for row in facts["scene_table"]:
        shares = row[SHARE_COLUMNS[facts["kind"]]], row["valid_fraction"]
        figures = f"{row['tiles']}", *(f"{share:.1%}" for share in shares)
        table.add_row(row["scene"], row["split"], *figures, row["status"])
    return table


def _issues_list(issues: list[dict[str, Any]], capped: bool) -> RenderableType:
    """List scenes that are not ``ok``, one per line, so that a reason can be copied."""
    from rich.text import Text

    shown = issues[:SHOWN_ISSUES] if capped else issues
    text = Text(f"scenes that are not ok ({len(issues)})", style="bold")
    for issue in shown:
        text.append(f"\n  {issue['scene']}: {issue['status']}: {issue['reason']}", "not bold")
    if len(shown) < len(issues):
        text.append(
            f"\n  and {len(issues) - len(shown)} more: `geoprep info --scenes` lists all",
            "not bold",
        )
    return text


def _table(*columns: str) -> Table:
    """Return an empty table. Columns whose title begins with ``>`` are right-aligned."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for title in columns:
        justify: Literal["left", "right"] = "right" if title.startswith(">") else "left"
        table.add_column(title.removeprefix(">"), justify=justify, no_wrap=True, overflow="fold")
    return table


def _bytes(size: float) -> str:
    """Return a size with its unit, such as ``1.2 GB``; 1 GB is 10^9 bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
