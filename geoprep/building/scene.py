"""The scenes of a plan: their headers, the digest of all inputs, and the layout of their tiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import xxhash

from geoprep.building.options import BuildOptions
from geoprep.errors import GeoprepError, ImageError, SourceError, UsageError
from geoprep.executors.threads import Executor
from geoprep.grid import Grid, auto_tile, level_sides, tile_windows
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
from geoprep.labels.vector_names import vector_parts
from geoprep.sources.scene import Scene, SourceScenes
from geoprep.storage.addresses import is_local, shown_address
from geoprep.storage.versions import content_digest, file_states, sample_digest
from geoprep.texts import counted

TRAIN, VAL, TEST, UNUSED = 0, 1, 2, 3

MOST_TILE_BYTES: Final = 256 << 20
"""A tile is one chunk, which is read whole; every thread of a build holds those of a scene."""
MOST_FINER: Final = 10
"""Largest ratio of an image's pixel size to that of the finest level."""
WORLDVIEW_BANDS = ("coastal", "blue", "green", "yellow", "red", "red edge", "nir1", "nir2")
BAND_NAMES = {
    "PS-RGB": ("red", "green", "blue"),
    "PS-MS": WORLDVIEW_BANDS,
    "MS": WORLDVIEW_BANDS,
    "PAN": ("pan",),
}
ALL_BACKGROUND: Final = ""
"""Label of a scene without a label file, which says that all of it is background."""
_MOST_TOGETHER: Final = 64
"""Largest number of scenes whose headers or files one task reads."""

T = TypeVar("T")
R = TypeVar("R")


class SceneInputs(NamedTuple):
    """Digests of the files of a scene as they were when a plan was made.

    Images count by size and samples. Labels count whole: one road may be all that has changed.
    """

    digest: int  # of the image, of a VRT with its sources; 0: it could not be read
    content: int  # of all files, 128 bits
    state: int  # their sizes and times


@dataclass(frozen=True, slots=True)
class PlannedScene(Scene):
    """A scene of a source, which planning completes step by step.

    ``label`` becomes the file shared by all scenes where the scene has none of its own.
    """

    city: int = 0  # index of the source that the scene is from
    # By its header
    opened: OpenScene | None = None  # how its image is read; None if it cannot be used
    band_names: tuple[Names, ...] = ()
    failure: str = ""  # why the scene cannot be built
    # Addresses of all files of the image, the image itself first, and those of its label
    files: tuple[str, ...] = ()
    image_files: int = 1  # of the image
    inputs: SceneInputs | None = None  # what these were when they were read for the plan
    # For the digest of the inputs, until the plan is complete
    facts: str = ""  # shape, CRS, transform, nodata and band meanings by GDAL, as text
    # In the store
    schema: Schema = "auto"  # of the road attributes
    labelled: bool = False  # whether it counts as labelled where scenes are divided into splits
    shape: tuple[int, int] = (0, 0)  # height and width in pixels of the finest level
    windows: tuple[tuple[int, int], ...] = ()  # (row, col) of every tile, as above
    first_tile: int = 0  # row of the first tile in the store's tile table
    splits: tuple[int, ...] = ()  # of every tile: 0 train, 1 val, 2 test, 3 unused

    @property
    def grid(self) -> Grid | None:
        """The grid of the image; None if it cannot be used."""
        return None if self.opened is None else self.opened.grid

    @property
    def pixels(self) -> OpenScene:
        """How the image of a scene that has not failed is read."""
        assert self.opened is not None
        return self.opened

    @property
    def target(self) -> Grid | None:
        """The grid of the finest level."""
        return None if self.grid is None else self.grid.resized(*self.shape)

    def require_unchanged(self) -> None:
        """Raise SourceError if a file has changed since it was planned.

        If size or time differ, the content decides: copies on several machines have other times.
        """
        before = self.inputs
        if before is None or file_states(self.files) == before.state:
            return
        if inputs_of(self.files, self.image_files).content != before.content:
            raise SourceError(
                f"{shown_address(self.image)} or its label changed while the store was built. Wait "
                "until the files are complete, and build it again with `overwrite`"
            )

    def tiles(self, first: int, stop: int) -> PlannedScene:
        """Return the scene with only the tiles from ``first`` to before ``stop``."""
        return replace(
            self,
            windows=self.windows[first:stop],
            splits=self.splits[first:stop],
            first_tile=self.first_tile + first,
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """Sides of the tiles and their windows in a scene."""

    tile: int  # side in pixels of the finest level
    levels: tuple[int, ...]  # side at every level
    options: BuildOptions
    usual: tuple[int, int]  # most frequent shape of a scene, for images that cannot be opened

    @classmethod
    def of(cls, grids: Sequence[Grid | None], bands: int, options: BuildOptions) -> Layout:
        """Return the layout for these images; None is an image that cannot be opened."""
        shapes = [_finest_shape(grid, options) for grid in grids if grid is not None]
        divisor = 2 ** (options.levels - 1)
        tile = options.resize or options.tile or auto_tile(shapes, options.overlap, divisor)
        if tile**2 * bands > MOST_TILE_BYTES:
            raise UsageError(
                f"a tile of {tile} x {tile} pixels in {bands} bands has "
                f"{tile**2 * bands / 2**20:,.0f} MiB, more than {MOST_TILE_BYTES >> 20} MiB: use a "
                "smaller `tile` or `resize`"
            )
        usual = Counter(shapes).most_common(1)[0][0]
        return cls(tile, level_sides(tile, options.levels), options, usual)

    def tiled(self, scene: PlannedScene, first_tile: int) -> PlannedScene:
        """Return a scene with its tiles; one that cannot be opened has those of most scenes."""
        shape = self.usual if scene.grid is None else _finest_shape(scene.grid, self.options)
        windows = _windows(shape, self.tile, self.options.overlap)
        return replace(scene, shape=shape, windows=windows, first_tile=first_tile)


@lru_cache(maxsize=1024)  # scenes of one shape share a tuple: there may be a million
def _windows(shape: tuple[int, int], tile: int, overlap: int) -> tuple[tuple[int, int], ...]:
    return tuple(tile_windows(shape, tile, overlap))


def _finest_shape(grid: Grid, options: BuildOptions) -> tuple[int, int]:
    if options.resize is not None:
        return options.resize, options.resize
    if options.gsd is None:
        return grid.shape
    finest = min(grid.gsd_m())
    if options.gsd * MOST_FINER < finest:
        raise UsageError(
            "gsd",
            f"{options.gsd:g} m is {finest / options.gsd:,.0f} times as fine as the images, "
            f"whose pixels are {finest:.3g} m: use at least a {MOST_FINER}th of that",
        )
    return grid.at_gsd(options.gsd).shape


# Headers of the images, and digests of all input files


class Probed(NamedTuple):
    """A scene whose header is not read yet."""

    scene: PlannedScene
    product: str | None  # of the imagery
    options: BuildOptions
    reads_inputs: bool  # whether its files are identified
    stated: Stated = NOTHING_STATED  # by a STAC item


def probe_scenes(
    sources: Sequence[SourceScenes],
    options: BuildOptions,
    executor: Executor,
    *,
    read_inputs: bool = True,
) -> tuple[list[PlannedScene], list[str]]:
    """Return the header of every image, and notes; those of unusual bands fail."""
    items = [
        Probed(
            PlannedScene(scene.id, scene.image, scene.label, city, files=(scene.image,)),
            source.product,
            options,
            read_inputs,
            source.stated.get(scene.id, NOTHING_STATED),
        )
        for city, source in enumerate(sources)
        for scene in source.scenes
    ]
    probes = [probe for probe, *_ in items]
    read = partial(_each, probe_scene)
    for first, some in executor.map_unordered(read, _batches(items)):
        probes[first : first + len(some)] = some
    return _same_bands(probes, options)


def _batches(items: Sequence[T]) -> Iterator[tuple[int, Sequence[T]]]:
    """Yield runs of items, with the index of their first, for one task each."""
    # A cluster takes milliseconds per task, whatever its size, so make about a thousand.
    some = max(1, min(_MOST_TOGETHER, len(items) // 1000))
    return ((first, items[first : first + some]) for first in range(0, len(items), some))


def _each(function: Callable[[T], R], batch: tuple[int, Sequence[T]]) -> tuple[int, list[R]]:
    first, items = batch
    return first, [function(item) for item in items]


def probe_scene(item: Probed) -> PlannedScene:
    """Return the header of one image, checked, and the identity of the scene's files."""
    probe, _, options, reads_inputs, _ = item
    try:
        raster = describe(probe.image)
        probe = replace(probe, files=raster.files, facts=_facts(raster))
        probe = _usable(item._replace(scene=probe), raster)
    except GeoprepError as error:
        probe = replace(probe, failure=str(error))
    if not reads_inputs:
        return probe
    is_raster = probe.label is not None and options.raster_rule(probe.label) is not None
    files = *probe.files, *label_files(probe.label, raster=is_raster)
    count = len(probe.files)
    return replace(probe, files=files, image_files=count, inputs=inputs_of(files, count))


def _usable(item: Probed, raster: Raster) -> PlannedScene:
    probe, product, options, _, stated = item
    of_product = [(name,) for name in BAND_NAMES.get(product or "", ())]
    of_file = raster.names_or(stated.names)
    bands = raster.default_bands[:3] if product == "PS-RGB" else raster.default_bands
    if options.bands is not None:
        offered = [*of_product, *of_file[len(of_product) :]]
        bands = band_numbers(options.bands, offered, raster.name)
    names = of_file if max(bands) > len(of_product) else of_product
    chosen = tuple(names[band - 1] for band in bands)
    if options.band_names:
        if len(options.band_names) != len(bands):
            raise ImageError(
                f"`band_names` names {len(options.band_names)} bands, and {len(bands)} of "
                f"{raster.name} are stored: give as many"
            )
        chosen = tuple((name, common_name(name)) for name in options.band_names)
    opened = open_scene(raster, bands, raster.placed(options.pixel_size), options.nodata, stated)
    facts, units = probe.facts, opened.units
    facts = facts if opened.nodata == options.nodata else f"{facts} nodata {opened.nodata}"
    facts = f"{facts} {units}" if units else facts
    return replace(probe, opened=opened, band_names=chosen, facts=facts)


def _same_bands(
    probes: Sequence[PlannedScene], options: BuildOptions
) -> tuple[list[PlannedScene], list[str]]:
    """Return the probes with equal bands in equal order, those that lack one failed, and notes.

    The bands are those of most images, of images with names if there are any.
    """
    usable = [probe for probe in probes if not probe.failure]
    own = {probe.id: probe.band_names for probe in usable}
    shared = dict(zip(own, shared_names([*own.values()]), strict=True))
    probes = [replace(probe, band_names=shared.get(probe.id, ())) for probe in probes]
    usable = [probe for probe in probes if not probe.failure]
    count = Counter(len(probe.band_names) for probe in usable).most_common(1)[0][0] if usable else 0
    counts = Counter(probe.band_names for probe in usable if len(probe.band_names) == count)
    wanted = max(counts, key=lambda names: (has_names(names), counts[names]), default=())
    usual = next((probe.pixels.bands for probe in usable if len(probe.band_names) == count), ())
    checked, by_name, by_number = list[PlannedScene](), list[str](), list[str]()
    for probe in probes:
        if probe.failure or probe.band_names == wanted:
            checked.append(probe)
            continue
        name, match = shown_address(probe.image), match_bands(wanted, probe.band_names)
        places = match.places or tuple(range(count))
        pixels = probe.pixels
        if len(pixels.bands) != count or (match.missing and options.bands is None):
            has = f"{_listed(pixels.bands)}, most images have {_listed(usual)}"
            if len(pixels.bands) == count:
                has = f"{_named(probe.band_names)}, and most images {_named(wanted)}"
            why = f"{name} has bands {has}: choose common ones with `bands`, or build separate "
            checked.append(replace(probe, opened=None, failure=f"{why}stores"))
            continue
        if places != tuple(range(count)):
            by_name.append(name)
            bands = tuple(pixels.bands[place] for place in places)
            units = tuple(pixels.units[place] for place in places) if pixels.units else ()
            reordered = replace(pixels, bands=bands, units=units)
            probe = replace(probe, opened=reordered, facts=f"{probe.facts} {bands}")
        if count > 1 and (match.unnamed or match.missing):
            by_number.append(name)
        checked.append(replace(probe, band_names=wanted))
    notes = [
        f"{counted(len(names), 'image')} such as {names[0]}: {how} {_named(wanted)}"
        for names, how in (
            (by_name, "bands in another order, read by their names as"),
            (by_number, "bands without names, or with others, read in their order as"),
        )
        if names
    ]
    if shared != own and has_names(own[usable[0].id]):
        notes.append(
            f"most images do not share names of bands such as {_named(own[usable[0].id])} of "
            f"{shown_address(usable[0].image)}: bands are {_named(wanted)}, by colour or number; "
            "`band_names` names them"
        )
    opened = [probe.opened for probe in checked if probe.opened]
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
    place = crs, tuple(raster.grid.transform)[:6]
    nodata = tuple(band.nodata for band in raster.bands)
    colours = tuple(band.colour for band in raster.bands)
    return repr((raster.grid.shape, *place, nodata, colours))


def label_files(label: str | None, *, raster: bool = False) -> list[str]:
    """Return the files of a label; none for a scene without label."""
    if label is None:
        return []
    if not raster:
        return [str(part) for part in vector_parts(Path(label))] if is_local(label) else [label]
    try:
        return list(describe(label).files)
    except GeoprepError:  # the build reports it with the scene
        return [label]


def inputs_of(files: Sequence[str], image_files: int) -> SceneInputs:
    """Return the identity of files, of which the first ``image_files`` are those of an image."""
    state = file_states(files)  # first: what is read later is at least as new
    digests = [
        _or_unreadable(sample_digest if number < image_files else content_digest, file)
        for number, file in enumerate(files)
    ]
    own = _image_digest(digests[: _own_files(files, image_files)])
    return SceneInputs(own, _together(digests), state)


def _or_unreadable(digest: Callable[[str], str], file: str) -> str:
    try:
        return digest(file)
    except SourceError:
        return "unreadable"


def _own_files(files: Sequence[str], image_files: int) -> int:
    """Return how many of the first files make an image equal: the text of a VRT does not."""
    return image_files if files[0].lower().endswith(".vrt") else 1


def _image_digest(digests: Sequence[str]) -> int:
    unknown = digests[0] == "unreadable"
    return 0 if unknown else xxhash.xxh3_64_intdigest(" ".join(digests).encode())


def _together(digests: Sequence[str]) -> int:
    return xxhash.xxh3_128_intdigest(" ".join(digests).encode())


def compare_equal(scenes: Sequence[PlannedScene], executor: Executor) -> list[PlannedScene]:
    """Return the scenes; images whose samples are equal have the digest of all of their bytes."""
    counts = Counter(scene.inputs.digest for scene in scenes if scene.inputs)
    compared = [*scenes]
    alike = [
        (i, scene.files[: _own_files(scene.files, scene.image_files)])
        for i, scene in enumerate(scenes)
        if scene.inputs and scene.inputs.digest and counts[scene.inputs.digest] > 1
    ]
    for _, found in executor.map_unordered(partial(_each, _whole_digest), _batches(alike)):
        for i, digest in found:
            inputs = scenes[i].inputs
            assert inputs is not None  # chosen above
            compared[i] = replace(scenes[i], inputs=inputs._replace(digest=digest))
    return compared


def _whole_digest(item: tuple[int, Sequence[str]]) -> tuple[int, int]:
    return item[0], _image_digest([_or_unreadable(content_digest, file) for file in item[1]])


def inputs_digest(
    names: Sequence[str], scenes: Sequence[PlannedScene], shared: Sequence[str | None]
) -> str:
    """Return a digest of all inputs. Paths and times do not count.

    ``names`` are texts that count in addition to the files of the scenes and the shared ones.
    """
    contents = [scene.inputs.content for scene in scenes if scene.inputs]
    contents += [
        _together([_or_unreadable(content_digest, file) for file in label_files(name)])
        for name in shared
        if name
    ]
    texts = *names, *(f"{content:032x}" for content in contents)
    return xxhash.xxh3_128_hexdigest("\n".join(texts).encode())
