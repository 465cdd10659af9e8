"""The commands of stores: `info`, `verify`, `preview` and `export`."""

from __future__ import annotations

import json
from typing import Any

import click

import geoprep
from geoprep.api.store_functions import (
    CheckOptions,
    ExportOptions,
    ExportTarget,
    InfoOptions,
    PreviewArgument,
    PreviewOptions,
    StoreArgument,
)
from geoprep.cli.records import Json, Quiet, RecordCommand
from geoprep.errors import UsageError
from geoprep.texts import printable


def _info(given: dict[str, Any]) -> None:
    from geoprep.cli.progress import print_info

    as_json = given.pop("as_json", False)
    facts = geoprep.store_info(**given)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        print_info(facts)


info = RecordCommand(
    "info",
    (StoreArgument, InfoOptions, Json),
    "Print the contents of a store, and the memory that its tiles and a loader take.",
    action=_info,
)


def _verify(given: dict[str, Any]) -> int:
    from geoprep.cli.progress import print_verification

    quiet, as_json = given.pop("quiet", False), given.pop("as_json", False)
    result = geoprep.check_store(**given, progress=not (quiet or as_json))
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    else:
        print_verification(result)
    return 1 if result.problems else 0


verify = RecordCommand(
    "verify",
    (StoreArgument, CheckOptions, Quiet, Json),
    """Check every file and chunk of a store against checksums and hashes.

    Exit status: 0 the store is intact; 1 it is damaged (the output names arrays and shards).
    """,
    action=_verify,
    short_help="Check every chunk of a store against its checksums.",
)


def _preview(given: dict[str, Any]) -> None:
    progress = not given.pop("quiet", False)
    click.echo(printable(f"wrote {geoprep.preview(**given, progress=progress)}"))


preview = RecordCommand(
    "preview",
    (PreviewArgument, PreviewOptions, Quiet),
    """Draw scenes of a store, roads or polygons; or write an HTML page of a store.

    For a store, the picture shows images, labels and overlays. --out NAME.html writes a page of
    all scenes with filters, a map and histograms, which needs no network connection. For a road
    network (.gpkg, .geojson, .parquet, .graphml, .osm), the picture shows its edges coloured by
    speed, over the --over image if given. Polygons (.gpkg, .geojson, .parquet) are coloured
    by their field class, as of `geoprep polygonize`, or else by layer.
    """,
    action=_preview,
    short_help="Draw scenes, roads or polygons, or write an HTML page.",
)


def _export(given: dict[str, Any]) -> None:
    store, out, texts = given.pop("store"), given.pop("out"), given.pop("scenes", ())
    several = any("," in text for text in texts)  # an id may have a comma too
    ids = set(map(str, geoprep.open_store(store).reader.scenes.id)) if several else set()
    lists = ([text] if text in ids else text.split(",") for text in texts)
    names = [name.strip() for one in lists for name in one]
    by, quiet = given.pop("by", None), given.pop("quiet", False)
    if bool(names or given.get("split")) == (by is not None):
        raise UsageError(
            "give one of --scenes NAME (or all), --split and --footprints scene; `geoprep "
            "export-model` exports a model"
        )
    if by is not None:
        overwrite = given.get("overwrite", False)
        written = [geoprep.export_footprints(store, out, by=by, overwrite=overwrite)]
    else:
        written = geoprep.export_scenes(store, names, out, **given)
    for path in () if quiet else written:
        click.echo(printable(f"wrote {path}"))


export = RecordCommand(
    "export",
    (StoreArgument, ExportTarget, ExportOptions, Quiet),
    """Export scenes as GeoTIFF, image and label, or the footprints of all.

    The files are Cloud Optimised GeoTIFFs. Scenes of any size need the memory of a few rows of
    tiles. `geoprep export-model` exports a model.
    """,
    action=_export,
    short_help="Export scenes as GeoTIFF, or footprints.",
)
