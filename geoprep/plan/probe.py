"""What can be told of a scene before a pixel is read: its header, and a digest of its files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import xxhash

from geoprep import imagery
from geoprep.errors import GeoprepError, ImageError, SourceError
from geoprep.executors import Dask, Executor
from geoprep.grid import Grid
from geoprep.labels import SHAPEFILE_PARTS
from geoprep.plan.options import BuildOptions
from geoprep.sources import Scene
from geoprep.storage import content_digest, is_local, open_header

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
"""Hyperspectral sensors have some 450; a scene's lookup tables take 64 kB per band."""
# Statistics that a viewer leaves beside an image, and overviews, which are not read.
_NOT_READ: Final = (".aux.xml", ".ovr")
_MOST_TOGETHER = 64
"""Scenes whose files one task reads for their digest, in a build of very many."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What the header of one image says, or why it cannot be used.

    Attributes
    ----------
    files
        Addresses of all that is read of the image, itself first.
    facts
        What GDAL makes of them, as text.
    """

    grid: Grid | None
    dtype: str = ""
    bands: tuple[int, ...] = ()
    band_names: tuple[str, ...] = ()
    failure: str = ""
    files: tuple[str, ...] = ()
    facts: str = ""


Probed = tuple[Scene, str | None, BuildOptions]
"""A scene, its imagery product, the options of the build."""


def probe_scenes(items: Sequence[Probed], executor: Executor) -> list[Probe]:
    """Open images; one whose header a cluster's workers die over cannot be used, and it alone."""
    if isinstance(executor, Dask):
        return executor.map_ordered(probe_scene, items, _deadly)
    return executor.map_ordered(probe_scene, items)


def _deadly(item: Probed) -> Probe:
    image = item[0].image
    why = f"{image}: opening it ends the process; fetch the scene again"
    return Probe(None, failure=why, files=(image,))


def probe_scene(item: Probed) -> Probe:
    """Open one image and check that it can be used."""
    scene, product, options = item
    files: tuple[str, ...] = (scene.image,)
    facts = ""
    try:
        with open_header(scene.image) as dataset:
            files, facts = _files_of(dataset, scene.image), _facts(dataset)
            probe = _usable(dataset, product, options)
    except GeoprepError as error:
        probe = Probe(None, failure=str(error))
    return replace(probe, files=files, facts=facts)


def _usable(dataset: DatasetReader, product: str | None, options: BuildOptions) -> Probe:
    bands = options.bands or imagery.default_bands(dataset)
    if options.bands is None and product == "PS-RGB":
        bands = bands[:3]
    if len(bands) > MOST_BANDS:
        raise ImageError(
            f"{dataset.name} has {len(bands)} bands, more than {MOST_BANDS}: choose some of them "
            "with --bands"
        )
    dtype = imagery.check_image(dataset, bands)
    names = BAND_NAMES.get(product or "", ())
    if max(bands) > len(names):
        names = imagery.band_names(dataset)
    grid = imagery.grid_of(dataset, options.pixel_size)
    return Probe(grid, dtype, bands, tuple(names[band - 1] for band in bands))


def of_equal_bands(scenes: Sequence[Scene], probes: Sequence[Probe]) -> list[Probe]:
    """Refuse the images whose bands are not those of most: one store has one list of bands."""
    counts = Counter(probe.bands for probe in probes if not probe.failure)
    usual = counts.most_common(1)[0][0] if counts else ()
    return [
        probe
        if probe.failure or probe.bands == usual
        else replace(
            probe,
            grid=None,
            failure=f"{scene.image} has bands {_listed(probe.bands)}, most images have "
            f"{_listed(usual)}: choose what all have with --bands, or build their stores apart",
        )
        for scene, probe in zip(scenes, probes, strict=True)
    ]


def _listed(bands: Sequence[int]) -> str:
    return ",".join(map(str, bands))


def _files_of(dataset: DatasetReader, address: str) -> tuple[str, ...]:
    """Return the files an image consists of: sources of a VRT, masks and world files too."""
    if not is_local(address):
        return (address,)
    beside = [str(name) for name in dataset.files if not str(name).endswith(_NOT_READ)]
    return (address, *(name for name in beside if name != address))


def _facts(dataset: DatasetReader) -> str:
    """Return what GDAL makes of an image's sidecars, statistics left out."""
    place = dataset.crs.to_string() if dataset.crs else "", tuple(dataset.transform)[:6]
    meanings = tuple(meaning.name for meaning in dataset.colorinterp)
    return repr((dataset.shape, *place, dataset.nodatavals, meanings))


def label_files(label: str | None, *, raster: bool = False) -> list[str]:
    """Return the files that a label consists of, none for a scene without one."""
    if label is None:
        return []
    if raster:
        try:
            with open_header(label) as dataset:
                return list(_files_of(dataset, label))
        except GeoprepError:  # the scene will say why
            return [label]
    if not (is_local(label) and label.lower().endswith(".shp")):
        return [label]
    parts = [str(Path(label).with_suffix(suffix)) for suffix in SHAPEFILE_PARTS]
    return [label, *(part for part in parts if Path(part).is_file())]


def files_digest(addresses: Iterable[str]) -> str:
    """Return a digest of the contents of some files; one that cannot be read counts as such."""
    found = []
    for address in addresses:
        try:
            found.append(content_digest(address))
        except SourceError:
            found.append("unreadable")
    return xxhash.xxh3_128_hexdigest(" ".join(found).encode())


def inputs_digest(
    names: Sequence[str],
    files: Sequence[Sequence[str]],
    executor: Executor,
    report: Callable[[int, int], None] | None,
) -> str:
    """Return a digest of what goes in: names and the contents of files, no paths, no times.

    Parameters
    ----------
    names
        Texts that count beside the files: ids of scenes, facts about images.
    files
        Addresses, by what belongs together.
    report
        Called with how many of ``files`` have been read, and how many there are.
    """
    digests, done = [""] * len(files), 0
    # A cluster takes milliseconds per task, whatever is in it; a thousand of them do not matter.
    some = max(1, min(_MOST_TOGETHER, len(files) // 1000))
    items = ((first, files[first : first + some]) for first in range(0, len(files), some))
    for first, found in executor.map_unordered(_digests, items):
        digests[first : first + len(found)] = found
        done += len(found)
        if report is not None:
            report(done, len(files))
    return xxhash.xxh3_128_hexdigest("\n".join([*names, *digests]).encode())


def _digests(item: tuple[int, Sequence[Sequence[str]]]) -> tuple[int, list[str]]:
    first, files = item
    return first, [files_digest(each) for each in files]
