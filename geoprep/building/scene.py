"""The scenes of a plan: described by their headers, then planned with their tiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from geoprep.building.inputs import InputFiles, label_files
from geoprep.building.options import BuildOptions
from geoprep.errors import GeoprepError, ImageError
from geoprep.executors.threads import Executor, in_batches
from geoprep.grid import Grid, Windows
from geoprep.imagery.band_names import (
    Names,
    band_numbers,
    common_name,
    has_names,
    match_bands,
    shared_names,
)
from geoprep.imagery.description import NOTHING_STATED, Raster, Stated
from geoprep.imagery.headers import describe
from geoprep.imagery.scenes import OpenScene, open_scene
from geoprep.labels.label_options import Schema
from geoprep.sources.scene import Scene, SourceScenes
from geoprep.storage.addresses import shown_address
from geoprep.texts import counted

if TYPE_CHECKING:
    from geoprep.labels.raster_rules import RasterRule

TRAIN, VAL, TEST, UNUSED = 0, 1, 2, 3

WORLDVIEW_BANDS = ("coastal", "blue", "green", "yellow", "red", "red edge", "nir1", "nir2")
BAND_NAMES = {
    "PS-RGB": ("red", "green", "blue"),
    "PS-MS": WORLDVIEW_BANDS,
    "MS": WORLDVIEW_BANDS,
    "PAN": ("pan",),
}
ALL_BACKGROUND: Final = ""
"""Label of a scene without a label file, which says that all of it is background."""


@dataclass(frozen=True, slots=True)
class _WithHeader(Scene):
    """A scene whose header has been read."""

    city: int  # index of the source that the scene is from
    inputs: InputFiles
    opened: OpenScene | None  # how its image is read; None if it cannot be used
    failure: str  # why the scene cannot be built; empty if it can

    @property
    def grid(self) -> Grid | None:
        """The grid of the image; None if it cannot be used."""
        return None if self.opened is None else self.opened.grid

    @property
    def pixels(self) -> OpenScene:
        """How the image of a scene that has not failed is read."""
        assert self.opened is not None
        return self.opened


@dataclass(frozen=True, slots=True)
class Described(_WithHeader):
    """A scene with what the header of its image states."""

    band_names: tuple[Names, ...]
    facts: str  # shape, CRS, transform, nodata and band meanings by GDAL, as text


@dataclass(frozen=True, slots=True)
class Planned(_WithHeader):
    """A scene with its tiles in the store.

    ``label`` is the file shared by all scenes where the scene has none of its own.
    """

    schema: Schema  # of the road attributes
    rule: RasterRule | None  # how its label is read; None: it has none, or one of vectors
    labelled: bool  # whether it counts as labelled where scenes are divided into splits
    windows: Windows  # of the tiles, in pixels of the finest level
    first_tile: int  # row of the first tile in the store's tile table
    splits: tuple[int, ...] = ()  # of every tile: 0 train, 1 val, 2 test, 3 unused

    @property
    def target(self) -> Grid | None:
        """The grid of the finest level."""
        return None if self.grid is None else self.grid.resized(*self.windows.shape)


def describe_scenes(
    sources: Sequence[SourceScenes],
    options: BuildOptions,
    executor: Executor,
    *,
    read_inputs: bool = True,
) -> tuple[list[Described], list[str]]:
    """Return the scenes with the headers of their images, and notes; those of unusual bands fail.

    Without ``read_inputs`` the files are not identified.
    """
    found = [
        (scene, city, source.product, source.stated.get(scene.id, NOTHING_STATED))
        for city, source in enumerate(sources)
        for scene in source.scenes
    ]
    describe_one = partial(describe_scene, options=options, read_inputs=read_inputs)
    return _same_bands(in_batches(executor, describe_one, found), options)


def describe_scene(
    found: tuple[Scene, int, str | None, Stated], options: BuildOptions, *, read_inputs: bool
) -> Described:
    """Return a scene with the header of its image, checked, and the identity of its files.

    It is given with its source, the product of the imagery, and what a STAC item has stated.
    """
    scene, city, product, stated = found
    files: tuple[str, ...] = (scene.image,)
    opened, names, facts, failure = None, tuple[Names, ...](), "", ""
    try:
        raster = describe(scene.image)
        files, facts = raster.files, _facts(raster)
        bands, names = _chosen_bands(raster, product, stated, options)
        grid = raster.placed(options.pixel_size)
        opened = open_scene(raster, bands, grid, options.nodata, stated)
        facts += "" if opened.nodata == options.nodata else f" nodata {opened.nodata}"
        facts += f" {opened.units}" if opened.units else ""
    except GeoprepError as error:
        failure, names = str(error), ()
    inputs = InputFiles(files)
    if read_inputs:
        is_raster = scene.label is not None and options.raster_rule(scene.label) is not None
        inputs = InputFiles.read(files, label_files(scene.label, raster=is_raster))
    scene_of = scene.id, scene.image, scene.label, city
    return Described(*scene_of, inputs, opened, failure, names, facts)


def _chosen_bands(
    raster: Raster, product: str | None, stated: Stated, options: BuildOptions
) -> tuple[tuple[int, ...], tuple[Names, ...]]:
    """Return the 1-based bands of an image that are stored, and their names."""
    of_product = [(name,) for name in BAND_NAMES.get(product or "", ())]
    of_file = raster.names_or(stated.names)
    bands = raster.default_bands[:3] if product == "PS-RGB" else raster.default_bands
    if options.bands is not None:
        offered = [*of_product, *of_file[len(of_product) :]]
        bands = band_numbers(options.bands, offered, raster.name)
    if not options.band_names:
        names = of_file if max(bands) > len(of_product) else of_product
        return bands, tuple(names[band - 1] for band in bands)
    if len(options.band_names) != len(bands):
        raise ImageError(
            f"`band_names` names {len(options.band_names)} bands, and {len(bands)} of "
            f"{raster.name} are stored: give as many"
        )
    return bands, tuple((name, common_name(name)) for name in options.band_names)


def _same_bands(
    scenes: Sequence[Described], options: BuildOptions
) -> tuple[list[Described], list[str]]:
    """Return the scenes with equal bands in equal order, those that lack one failed, and notes.

    The bands are those of most images, of images with names if there are any.
    """
    usable = [scene for scene in scenes if not scene.failure]
    if not usable:
        return [*scenes], []
    own = [scene.band_names for scene in usable]
    shared = shared_names(own)
    count = Counter(map(len, shared)).most_common(1)[0][0]
    counts = Counter(names for names in shared if len(names) == count)
    wanted = max(counts, key=lambda names: (has_names(names), counts[names]))
    usual = usable[[*map(len, shared)].index(count)].pixels.bands
    checked, by_name, by_number = list[Described](), list[str](), list[str]()
    names_left = iter(shared)
    for scene in scenes:
        if scene.failure or (names := next(names_left)) == wanted:
            checked.append(scene if scene.failure else replace(scene, band_names=wanted))
            continue
        name, match, pixels = shown_address(scene.image), match_bands(wanted, names), scene.pixels
        if len(pixels.bands) != count or (match.missing and options.bands is None):
            has = f"{_listed(pixels.bands)}, most images have {_listed(usual)}"
            if len(pixels.bands) == count:
                has = f"{_named(names)}, and most images {_named(wanted)}"
            why = f"{name} has bands {has}: choose common ones with `bands`, or build separate "
            checked.append(replace(scene, opened=None, failure=f"{why}stores"))
            continue
        order, facts = match.places or tuple(range(count)), scene.facts
        if order != tuple(range(count)):
            by_name.append(name)
            bands = tuple(pixels.bands[i] for i in order)
            units = tuple(pixels.units[i] for i in order) if pixels.units else ()
            pixels, facts = replace(pixels, bands=bands, units=units), f"{facts} {bands}"
        if count > 1 and (match.unnamed or match.missing):
            by_number.append(name)
        checked.append(replace(scene, opened=pixels, band_names=wanted, facts=facts))
    notes = [
        f"{counted(len(names), 'image')} such as {names[0]}: {how} {_named(wanted)}"
        for names, how in (
            (by_name, "bands in another order, read by their names as"),
            (by_number, "bands without names, or with others, read in their order as"),
        )
        if names
    ]
    if shared != own and has_names(own[0]):
        notes.append(
            f"most images do not share names of bands such as {_named(own[0])} of "
            f"{shown_address(usable[0].image)}: bands are {_named(wanted)}, by colour or number; "
            "`band_names` names them"
        )
    opened = [scene.opened for scene in checked if scene.opened]
    if alphas := [shown_address(one.address) for one in opened if one.leaves_out_alpha]:
        notes.append(
            f"{counted(len(alphas), 'image')} such as {alphas[0]}: band 4 is called alpha and "
            "marks nodata; if it is near infrared, `bands` 1,2,3,4 reads it"
        )
    if doubts := [one for one in opened if one.doubt]:
        such = f"{counted(len(doubts), 'image')} such as {shown_address(doubts[0].address)}"
        notes.append(f"{such}: {doubts[0].doubt}")
    return checked, notes


def _named(bands: Sequence[Names]) -> str:
    return ", ".join(names[0] for names in bands)


def _listed(bands: Sequence[int]) -> str:
    return ",".join(map(str, bands))


def _facts(raster: Raster) -> str:
    """Return what GDAL reads from an image and its sidecar files, without statistics."""
    from rasterio.crs import CRS

    crs = CRS.from_wkt(raster.crs).to_string() if raster.crs else ""
    transform = tuple(raster.grid.transform)[:6]
    nodata = tuple(band.nodata for band in raster.bands)
    colours = tuple(band.colour for band in raster.bands)
    return repr((raster.grid.shape, crs, transform, nodata, colours))
