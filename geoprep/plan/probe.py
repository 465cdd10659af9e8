"""Headers of the images and digests of all input files, read before a build is planned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import xxhash

from geoprep import imagery
from geoprep.errors import GeoprepError, ImageError, SourceError
from geoprep.executors import Executor
from geoprep.grid import Grid
from geoprep.labels import SHAPEFILE_PARTS
from geoprep.plan.options import BuildOptions
from geoprep.sources import Scene, SourceScenes
from geoprep.storage import content_digest, is_local, open_header, split_address

if TYPE_CHECKING:
    from rasterio.io import DatasetReader

WORLDVIEW_BANDS = ("coastal", "blue", "green", "yellow", "red", "red edge", "nir1", "nir2")
BAND_NAMES = {
    "PS-RGB": ("red", "green", "blue"),
    "PS-MS": WORLDVIEW_BANDS,
    "MS": WORLDVIEW_BANDS,
    "PAN": ("pan",),
}
MOST_BANDS: Final = 512
"""Hyperspectral sensors have about 450; lookup tables take 64 kB per band and scene."""
# Statistics that viewers write next to an image, and overviews: a build does not read them.
_NOT_READ: Final = (".aux.xml", ".ovr")
_MOST_TOGETHER: Final = 64
"""Largest number of scenes whose files one task reads for their digest."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The header of one image, or why the image cannot be used."""

    scene: Scene
    source: int  # index of the source that the scene is from
    grid: Grid | None = None  # None if the image cannot be used
    dtype: str = ""  # of the selected bands
    bands: tuple[int, ...] = ()  # selected ones, numbered from 1
    band_names: tuple[str, ...] = ()
    failure: str = ""  # why the image cannot be used
    files: tuple[str, ...] = ()  # addresses of all files of the image, the image itself first
    facts: str = ""  # shape, CRS, transform, nodata and band meanings by GDAL, as text


Probed = tuple[Scene, int, str | None, BuildOptions]
"""A scene, the index of its source, its imagery product and the options of the build."""


def probe_scenes(
    found: Sequence[SourceScenes], options: BuildOptions, executor: Executor
) -> list[Probe]:
    """Return the header of every image; images of unusual bands, or that end a worker, fail."""
    items: list[Probed] = [
        (scene, i, one.product, options) for i, one in enumerate(found) for scene in one.scenes
    ]
    return _same_bands(executor.map_ordered(probe_scene, items, _crashed))


def _crashed(item: Probed) -> Probe:
    scene, source, *_ = item
    why = f"{scene.image}: opening it crashes the process. Download the scene again"
    return Probe(scene, source, failure=why, files=(scene.image,))


def probe_scene(item: Probed) -> Probe:
    """Return the header of one image, checked."""
    scene, source, product, options = item
    probe = Probe(scene, source, files=(scene.image,))
    try:
        with open_header(scene.image) as dataset:
            files, facts = _files_of(dataset, scene.image), _facts(dataset)
            probe = replace(probe, files=files, facts=facts)
            return _usable(probe, dataset, product, options)
    except GeoprepError as error:
        return replace(probe, failure=str(error))


def _usable(
    probe: Probe, dataset: DatasetReader, product: str | None, options: BuildOptions
) -> Probe:
    bands = options.bands or imagery.default_bands(dataset)
    if options.bands is None and product == "PS-RGB":
        bands = bands[:3]
    if len(bands) > MOST_BANDS:
        raise ImageError(
            f"{dataset.name} has {len(bands)} bands, more than {MOST_BANDS}: choose some of them "
            "with `bands`"
        )
    dtype = imagery.check_image(dataset, bands)
    names = BAND_NAMES.get(product or "", ())
    if max(bands) > len(names):
        names = imagery.band_names(dataset)
    grid = imagery.grid_of(dataset, options.pixel_size)
    chosen = tuple(names[band - 1] for band in bands)
    return replace(probe, grid=grid, dtype=dtype, bands=bands, band_names=chosen)


def _same_bands(probes: Sequence[Probe]) -> list[Probe]:
    """Return the probes with a failure where the bands differ from those of most images."""
    counts = Counter(probe.bands for probe in probes if not probe.failure)
    usual = counts.most_common(1)[0][0] if counts else ()
    return [
        probe
        if probe.failure or probe.bands == usual
        else replace(
            probe,
            grid=None,
            failure=f"{probe.scene.image} has bands {_listed(probe.bands)}, most images have "
            f"{_listed(usual)}: choose common ones with `bands`, or build separate stores",
        )
        for probe in probes
    ]


def _listed(bands: Sequence[int]) -> str:
    return ",".join(map(str, bands))


def _files_of(dataset: DatasetReader, address: str) -> tuple[str, ...]:
    """Return the files of an image, with those of a VRT, masks and world files."""
    if not is_local(address):
        return (address,)
    files = [str(name) for name in dataset.files if not str(name).endswith(_NOT_READ)]
    return (address, *(name for name in files if name != address))


def _facts(dataset: DatasetReader) -> str:
    """Return what GDAL reads from an image and its sidecar files, without statistics."""
    place = dataset.crs.to_string() if dataset.crs else "", tuple(dataset.transform)[:6]
    meanings = tuple(meaning.name for meaning in dataset.colorinterp)
    return repr((dataset.shape, *place, dataset.nodatavals, meanings))


def label_files(label: str | None, *, raster: bool = False) -> list[str]:
    """Return the files of a label; none for a scene without label."""
    if label is None:
        return []
    if raster:
        return [file for address in split_address(label) for file in _raster_files(address)]
    if not (is_local(label) and label.lower().endswith(".shp")):
        return [label]
    parts = [str(Path(label).with_suffix(suffix)) for suffix in SHAPEFILE_PARTS]
    return [label, *(part for part in parts if Path(part).is_file())]


def _raster_files(label: str) -> list[str]:
    try:
        with open_header(label) as dataset:
            return list(_files_of(dataset, label))
    except GeoprepError:  # the build reports it with the scene
        return [label]


def _digests_of(addresses: Iterable[str]) -> tuple[str, int]:
    """Return the digest of some files together, and 64 bits of the first one's, 0 if unreadable."""
    found = []
    for address in addresses:
        try:
            found.append(content_digest(address))
        except SourceError:
            found.append("unreadable")
    first = 0
    if found and found[0] != "unreadable":
        first = xxhash.xxh3_64_intdigest(found[0].encode())
    return xxhash.xxh3_128_hexdigest(" ".join(found).encode()), first


def inputs_digest(
    names: Sequence[str],
    files: Sequence[Sequence[str]],
    executor: Executor,
    report: Callable[[int, int], None] | None,
) -> tuple[str, list[int]]:
    """Return a digest of all inputs, and a 64-bit one of every image; 0 where it cannot be read.

    ``names`` are texts that count in addition to the files, which are given by scene, the image
    first. Paths and times do not count. ``report`` gets the numbers of items read and of all.
    """
    digests, firsts, done = [""] * len(files), [0] * len(files), 0
    # A cluster takes milliseconds per task, whatever its size, so make about a thousand.
    some = max(1, min(_MOST_TOGETHER, len(files) // 1000))
    items = ((first, files[first : first + some]) for first in range(0, len(files), some))
    for first, found in executor.map_unordered(_digests, items):
        digests[first : first + len(found)] = [digest for digest, _ in found]
        firsts[first : first + len(found)] = [own for _, own in found]
        done += len(found)
        if report is not None:
            report(done, len(files))
    return xxhash.xxh3_128_hexdigest("\n".join([*names, *digests]).encode()), firsts


def _digests(item: tuple[int, Sequence[Sequence[str]]]) -> tuple[int, list[tuple[str, int]]]:
    first, files = item
    return first, [_digests_of(each) for each in files]
