"""The printed results of commands."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from geoprep.cli.help import name_options
from geoprep.executors.terminal import Terminal
from geoprep.texts import counted

if TYPE_CHECKING:
    from geoprep.building.summary import DryRun
    from geoprep.verify.store_check import VerifyReport
    from geoprep.views.stores import Summary

MOST_LISTED = 20
MOST_PROBLEMS = 50
_RULES = {
    "scene": "percentiles 2 and 98 of each scene and band",
    "city": "percentiles 2 and 98 of each band over all scenes of a city",
}
WIDEST = 10_000
"""Characters per line: longer than any scene id."""


def print_summary(summary: Summary, notes: Sequence[str], *, quiet: bool) -> None:
    """Print the summary of a build, its notes and its problems.

    If ``quiet``, scenes and files are named only if they failed, and counted otherwise.
    """
    console, most = _console(notes), 0 if quiet else MOST_LISTED
    if summary.state == "unchanged":
        line = f"[green]already complete[/] {escape(summary.store)}: nothing to do"
        console.print(line, markup=True)
    else:
        seconds = max(summary.seconds, 1e-9)
        console.print(
            f"[green]{summary.state}[/] {escape(summary.store)} in {summary.seconds:.1f} s: "
            f"{summary.scenes_built / seconds:.1f} scenes/s, "
            f"{summary.source_bytes / seconds / 1e6:.0f} MB/s of pixels",
            markup=True,
        )
    console.print(_facts(summary))
    wrong = [issue for issue in summary.issues if issue[1] != "unlabelled"]
    _print_list(
        console,
        "scenes that were not built as planned",
        grouped([(name, f"{status}: {reason}") for name, status, reason in wrong]),
        len(wrong),
    )
    if "ok" in summary.statuses:  # otherwise no scene has a usable label
        unlabelled = [name for name, status, _ in summary.issues if status == "unlabelled"]
        _print_list(console, "scenes without a label", unlabelled, most=most)
    _print_list(console, "labels without an image", list(summary.orphan_labels), most=most)
    black = sorted(summary.black.items(), key=lambda one: -one[1])
    _print_list(
        console,
        "scenes with black pixels that count as nodata; --nodata none keeps them as imagery",
        [f"{name}: {counted(count, 'pixel')}" for name, count in black],
        most=most,
    )
    _print_list(
        console,
        "remarks on the labels, and defaults that were used",
        [f"{what}: {count:,}" for what, count in summary.notes.items()],
    )
    if summary.source_copy is not None:
        line = f"local copies of the inputs, which may be deleted: {summary.source_copy}"
        console.print(line, soft_wrap=True)
    for warning in summary.warnings:  # at the end of the output, where they are noticed
        text = f"WARNING: {name_options(warning)}"
        console.print(Text(text, style="bold red"), soft_wrap=True)


def _console(notes: Sequence[str]) -> Terminal:
    """Return a console on which the notes of a build have been printed."""
    console = Terminal()
    for note in notes:
        console.print("[yellow]note[/]", Text(name_options(note)), soft_wrap=True, markup=True)
    return console


def print_dry_run(result: DryRun, notes: Sequence[str]) -> None:
    """Print the result of a dry run."""
    console = _console(notes)
    table = Table(show_header=False, box=None, pad_edge=False)
    splits = ", ".join(f"{count} {name}" for name, count in result.splits.items())
    levels = " and ".join(f"{side} x {side}" for side in result.levels)
    memory = ", ".join(
        f"{size / 1e6:,.1f} MB at {side}" for side, size in result.memory_bytes.items()
    )
    known = result.unlabelled is not None
    labels = f"{result.unlabelled:,} without a label" if known else "labels unknown"
    table.add_row("scenes", f"{result.scenes:,} ({labels})")
    if result.tiles:
        table.add_row("tiles", f"{result.tiles:,} of {levels} pixels ({splits})")
    if result.usable_tiles < result.tiles:
        table.add_row("labelled", counted(result.usable_tiles, "tile"))
    table.add_row("on disk", f"at most {result.raw_bytes / 1e6:,.1f} MB, before compression")
    if result.free_bytes is not None:
        table.add_row("free on disk", f"{result.free_bytes / 1e6:,.1f} MB")
    if result.replaced_bytes:
        size = f"{result.replaced_bytes / 1e6:,.1f} MB, kept until the new store is complete"
        table.add_row("existing store", size)
    table.add_row("in memory", memory)
    console.print(table)
    _print_list(console, "would fail", grouped(result.failures), len(result.failures))
    _print_list(console, "labels without an image", list(result.orphan_labels))
    _print_list(console, "unknown, since a dry run does not read them", list(result.unknown))


def _facts(summary: Summary) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    levels = " and ".join(f"{side} x {side}" for side in summary.levels)
    statuses = ", ".join(f"{count} {status}" for status, count in summary.statuses.items())
    splits = ", ".join(f"{count} {name}" for name, count in summary.splits.items() if count)
    table.add_row("scenes", statuses)
    table.add_row("tiles", f"{summary.tiles} of {levels} pixels ({splits})")
    if "ok" in summary.statuses:
        what = "pixels" if summary.share_name == "labelled" else "labelled pixels"
        table.add_row(summary.share_name, f"{summary.road_fraction:.2%} of the {what}")
    for split, counts in summary.class_pixels.items():
        total = max(1, sum(counts.values()))
        shares = (f"{name} {pixels / total:.1%}" for name, pixels in counts.items() if pixels)
        table.add_row(f"classes, {split}", ", ".join(shares) or "no labelled pixels")
    table.add_row("imagery", f"{summary.valid_fraction:.1%} of the scenes' pixels")
    if summary.limits:
        spans = [f"{_span(*low)} to {_span(*high)}" for low, high in summary.limits.values()]
        named = (f"{band} {span}" for band, span in zip(summary.limits, spans, strict=True))
        ranges = spans[0] if len(set(spans)) == 1 else ", ".join(named)
        rule = _RULES.get(summary.rescale, f"--rescale {summary.rescale}")
        count = counted(summary.stretched_scenes, "scene")
        table.add_row("stretched", f"to bytes in {count}, by {rule}: {ranges}")
    table.add_row("on disk", f"{summary.store_bytes / 1e6:.1f} MB")
    return table


def _span(least: float, most: float) -> str:
    """Return one number, or a range of two."""
    return f"{least:,.5g}" if least == most else f"{least:,.5g}–{most:,.5g}"


def grouped(failures: Sequence[tuple[str, str]]) -> list[str]:
    """Return one line per scene and reason, or per reason, with a count, if only names differ."""
    alike = defaultdict[str, list[tuple[str, str]]](list)
    for name, reason in failures:
        key = re.sub(r"\S*/\S*|-?\d[\d.,]*", "#", reason.replace(name, "#"))
        alike[key].append((name, reason))
    return [
        f"{counted(len(some), 'scene')} such as {some[0][0]}: {some[0][1]}"
        if len(some) > 1
        else f"{some[0][0]}: {some[0][1]}"
        for some in alike.values()
    ]


def _print_list(
    console: Terminal,
    title: str,
    lines: list[str],
    count: int | None = None,
    *,
    most: int = MOST_LISTED,
) -> None:
    if not lines:
        return
    console.print(f"[yellow]{title}[/] ({len(lines) if count is None else count})", markup=True)
    for line in lines[:most]:
        console.print(f"  {name_options(line)}", soft_wrap=True)
    if most and len(lines) > most:
        console.print(f"  and {len(lines) - most} more: see `geoprep info`, or --json")


def print_info(facts: dict[str, Any]) -> None:
    """Print the facts about a store, as `geoprep.store_info` returns them."""
    from geoprep.views.facts import render

    # The terminal breaks long lines. With rich's own width, names would be cut.
    Terminal(width=WIDEST).print(render(facts))


def print_verification(result: VerifyReport) -> None:
    """Print one line per problem of a store, and the verdict."""
    console = Terminal()
    for problem in result.problems[:MOST_PROBLEMS]:
        console.print(f"[red]damaged[/] {escape(str(problem))}", soft_wrap=True, markup=True)
    if len(result.problems) > MOST_PROBLEMS:
        console.print(f"and {len(result.problems) - MOST_PROBLEMS} more: --json lists all")
    found = f"[red]{counted(len(result.problems), 'problem')}[/] in"
    verdict = found if result.problems else "[green]intact[/]"
    rate = result.bytes / max(result.seconds, 1e-9) / 1e6
    console.print(
        f"{verdict} {escape(result.store)}: {result.files:,} files, "
        f"{counted(result.shards, 'shard')}, {counted(result.chunks, 'chunk')}, "
        f"{result.bytes / 1e6:,.1f} MB read in {result.seconds:.1f} s ({rate:,.0f} MB/s)",
        soft_wrap=True,
        markup=True,
    )


def print_cities(as_json: bool) -> None:
    """Print the cities with their archives."""
    from geoprep import list_cities

    cities = list_cities()
    console = Terminal()
    if as_json:
        console.print_json(json.dumps({name: asdict(city) for name, city in cities.items()}))
        return
    table = Table("city", "area", "data set", "labelled scenes", "road km", "archives")
    for name, city in cities.items():
        sizes = [f"{a.name}" + (f" ({a.gib} GiB)" if a.gib else "") for a in city.archives]
        counts = (str(count or "-") for count in (city.chips, city.road_km))
        table.add_row(name, city.aoi, city.mission, *counts, "\n".join(sizes))
    # As wide as the table, so that names are not cut.
    widest = Terminal(width=1000).measure(table).maximum
    Terminal(width=max(widest, console.width)).print(table)
