"""Stores for notebooks: tables as GeoDataFrames, pixels as xarray, pictures of scenes."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from geoprep.store.reader import StoreReader
from geoprep.store.scenes import find_scene
from geoprep.store.schema import SPLIT_NAMES, StoreMeta

if TYPE_CHECKING:
    import geopandas as gpd
    import xarray as xr
    from numpy.typing import NDArray

    from geoprep.storage.local_files import StrPath

_PLOT_PIXELS: Final = 800
"""Width of a scene in a notebook."""


def open_store(path: StrPath) -> Store:
    """Return the store at a path or address.

    Parameters
    ----------
    path
        Local folder, or an ``s3://``, ``gs://``, ``az://`` or ``https://`` address.

    Raises
    ------
    StoreError
        There is no store, or it is incomplete, damaged or of another schema.
    """
    return Store(StoreReader.open(str(path)))


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of a build."""

    store: str
    state: Literal["built", "resumed", "unchanged"]  # the last if it was complete before
    tiles: int
    levels: tuple[int, ...]
    store_bytes: int
    statuses: dict[str, int]
    issues: tuple[tuple[str, str, str], ...]  # id, status, reason of scenes not built as planned
    notes: dict[str, int]  # fallbacks of road attributes, with counts
    orphan_labels: tuple[str, ...]
    splits: dict[str, int]
    road_fraction: float  # of the labelled pixels, over the tiles of scenes with status ok
    valid_fraction: float  # of the pixels of all scenes, without the padding of tiles
    scenes_built: int = 0
    source_bytes: int = 0  # of pixels decoded by this run, uncompressed
    seconds: float = 0.0  # wall time of this run
    stages: dict[str, float] = field(default_factory=dict)  # seconds, summed over threads
    warnings: tuple[str, ...] = ()  # about a result that is probably not intended
    # Scene id: pixels that are nodata only because they are black; empty if nothing was built.
    black: dict[str, int] = field(default_factory=dict)
    source_copy: str | None = None  # folder of downloaded and unpacked inputs that is left
    share_name: str = "road"  # of the pixels that road_fraction counts
    class_pixels: dict[str, dict[str, int]] = field(default_factory=dict)  # split, class: pixels
    rescale: str = "none"  # rule by which source values were stretched to bytes
    stretched_scenes: int = 0
    # Band: range over these scenes of the source values that became 1, and that of 255.
    limits: dict[str, tuple[tuple[float, float], tuple[float, float]]] = field(default_factory=dict)


class Store:
    """A finished store: its tables, pixels and pictures.

    Parameters
    ----------
    reader
        The opened store that loaders use. Its tables are NumPy arrays.
    summary
        Summary of the build, if the store has just been built.

    Attributes
    ----------
    reader, summary
        As above.
    """

    def __init__(self, reader: StoreReader, summary: Summary | None = None) -> None:
        self.reader = reader
        self.summary = summary

    @property
    def location(self) -> str:
        """Path or address of the store."""
        return self.reader.location

    @property
    def meta(self) -> StoreMeta:
        """Parameters of the store: cities, bands, pixel size, levels and so on."""
        return self.reader.meta

    def __fspath__(self) -> str:
        return self.location

    def __len__(self) -> int:
        return len(self.reader.tiles)

    @cached_property
    def scenes(self) -> gpd.GeoDataFrame:
        """One row per scene, indexed by scene id.

        Columns: ``split`` (text; several are joined by a comma), ``status``, ``reason``, ``tiles``
        (their number), ``road_fraction`` (of classes ``label_fraction``) and ``valid_fraction``
        (0..1), ``crs`` (of the scene) and ``geometry`` (its outline; None if the scene is not
        georeferenced). The frame has the CRS of the scenes if they share one, else EPSG:4326.
        """
        from geoprep.views.footprints import table_of

        return table_of(self.reader, "scene").set_index("scene")

    @cached_property
    def tiles(self) -> gpd.GeoDataFrame:
        """One row per tile, in the order of the store.

        Columns: ``scene`` (id), ``row`` and ``col`` (offset in the scene, pixels of the finest
        level), ``split`` (text), ``status`` (of the scene), ``road_fraction`` (of classes
        ``label_fraction``) and ``valid_fraction`` (0..1), ``crs`` and ``geometry`` (outline
        without padding; None if the scene is not georeferenced). For the CRS of the frame see
        `scenes`.
        """
        from geoprep.views.footprints import table_of

        return table_of(self.reader, "tile").drop(columns="reason").set_index("tile")

    def to_xarray(self, level: int | None = None, *, scene: str | None = None) -> xr.Dataset:
        """Return images and labels of a level, read when they are used.

        Parameters
        ----------
        level
            Tile side in pixels. None: the finest.
        scene
            Id of a scene, or its end such as ``chip55``, whose tiles are joined as
            `export_scenes` joins them. None: all tiles of the store, one by one.

        Returns
        -------
        xarray.Dataset
            Its method ``chunk`` makes dask arrays of it. xarray, zarr, tensorstore and zarrs by
            themselves read zeros where a file or a chunk of a store is missing; here it is an
            error.

            Without ``scene``: ``image`` uint8 (tile, y, x, band) and ``speed`` (of classes:
            ``label``) uint8 (tile, y, x), with coordinates ``band`` (names), ``scene`` (ids),
            ``split`` (text), ``row``, ``col``, ``transform`` (tile, 6; of the level), ``crs`` (of
            the scene) and, unless pixels are rotated, ``x`` (tile, x) and ``y`` (tile, y): the
            centres of pixels.

            With ``scene``: ``image`` uint8 (band, y, x) and, unless it is unlabelled, ``speed`` or
            ``label`` uint8 (y, x), with their nodata values as ``_FillValue``, and coordinates
            ``band``, ``spatial_ref`` (CRS and ``GeoTransform`` as rioxarray reads them) and, of
            georeferenced pixels that are not rotated, ``x`` and ``y``.

        Raises
        ------
        UsageError
            The store has no such level or scene, or the scene has no pixels at that level.
        StoreError
            Pixels that are used are missing or damaged.
        """
        from geoprep.views.scene_dataset import open_scene, open_tiles

        level = self.reader.check_level(level)
        if scene is None:
            return open_tiles(self.reader, level)
        return open_scene(self.reader, find_scene(self.reader, scene), level)

    def plot(self, scene: str | None = None, *, level: int | None = None) -> NDArray[np.object_]:
        """Draw the image and the label of a scene with matplotlib.

        Parameters
        ----------
        scene
            Id of the scene, or its end such as ``chip55``. None: the first scene with pixels.
        level
            Tile side in pixels. None: the coarsest level.

        Returns
        -------
        object (2,)
            matplotlib axes of the image and of the label.

        Raises
        ------
        UsageError
            There is no such scene or level, or the scene has no pixels.
        """
        import matplotlib.pyplot as plt

        from geoprep.views.display import brightness_table, label_title
        from geoprep.views.geotiff import chosen_scenes, require_pixels
        from geoprep.views.overview import scene_view
        from geoprep.views.sheet import draw_colours, draw_panel

        reader = self.reader
        level = reader.check_level(reader.meta.levels[-1] if level is None else level)
        index, *_ = chosen_scenes(reader, ["all" if scene is None else scene], ["image"])
        require_pixels(reader, index)
        view = scene_view(reader, index, level, _PLOT_PIXELS, brightness_table(reader))
        figure, axes = plt.subplots(1, 2, figsize=(10, 5), layout="constrained")
        for panel, name in zip(axes, ("image", label_title(reader.meta)), strict=True):
            draw_panel(panel, view, name)
        figure.suptitle(view.caption(100), parse_math=False)
        draw_colours(figure, [view], loc="outside lower center")
        result: NDArray[np.object_] = axes
        return result

    def info(self, *, scenes: bool = False) -> dict[str, Any]:
        """Return facts about the store as plain values; see `geoprep.store_info`."""
        from geoprep.views.facts import info

        return info(self.reader, scenes=scenes)

    def _facts(self) -> list[tuple[str, str]]:
        """Return the lines of the repr: names and values."""
        meta, tiles, table = self.meta, self.reader.tiles, self.reader.scenes
        statuses = {name: int((table.status == name).sum()) for name in sorted(set(table.status))}
        splits = {name: int((tiles.split == i).sum()) for i, name in enumerate(SPLIT_NAMES)}
        gsd = max(meta.gsd_m)
        levels = [f"{level} ({gsd * meta.tile / level:.3g} m)" for level in meta.levels]
        return [
            ("cities", ", ".join(meta.cities)),
            ("scenes", f"{len(table):,} ({_listed(statuses)})"),
            ("tiles", f"{len(tiles):,} of {meta.tile} x {meta.tile} pixels ({_listed(splits)})"),
            ("levels", ", ".join(levels)),
            ("bands", ", ".join(meta.bands)),
            ("label", _label_text(self.reader)),
        ]

    def __repr__(self) -> str:
        rows = [f"  {name + ':':<8} {value}" for name, value in self._facts()]
        return "\n".join([f"<geoprep.Store {self.location}>", *rows])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
            for name, value in self._facts()
        )
        title = html.escape(self.location)
        return f"<div><b>geoprep.Store</b> <code>{title}</code><table>{rows}</table></div>"


def _label_text(store: StoreReader) -> str:
    meta = store.meta
    if meta.has_classes:
        count = len(meta.class_names)
        return f"{count} class{'es' * (count > 1)}: {', '.join(meta.class_names)}"
    return "speed in mph" if store.has_speeds else "road, without speeds"


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
