"""SpaceNet cities: list them, make a synthetic one, or download a real one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from geoprep.errors import UsageError

if TYPE_CHECKING:
    from geoprep.sources.cities import City
    from geoprep.storage.local_files import StrPath


def list_cities() -> dict[str, City]:
    """Return the SpaceNet cities by name, with their products and archives."""
    from geoprep.sources.cities import CITIES

    return dict(CITIES)


def synthesize(
    city: str,
    *,
    scenes: int = 24,
    out: StrPath = "data",
    seed: int = 0,
    product: str | Sequence[str] = "PS-RGB",
    size: int = 1300,
    labels: Literal["roads", "classes"] = "roads",
    workers: int | None = None,
    progress: bool = True,
) -> Path:
    """Make a synthetic city in SpaceNet layout: georeferenced scenes with road labels.

    The same seed gives the same files. Existing scenes of the same city are kept.

    Parameters
    ----------
    city
        Name of a SpaceNet city, which decides location, names and label schema; `geoprep cities`
        lists them.
    scenes
        Number of scenes.
    out
        Folder for the city.
    seed
        Random seed; each seed gives a different city.
    product
        Imagery product, or several: ``PS-RGB`` (3 bands, uint8), ``PS-MS`` (8 bands, 11 bits in
        uint16) or ``PAN`` (1 band, 11 bits in uint16).
    size
        Side of a scene in pixels.
    labels
        ``roads``: road labels as GeoJSON. ``classes``: also ``classes/``, with a raster of land
        cover per scene (background, building, road, water, tree) and ``classes.yaml``.
    workers
        Number of worker threads. Default: one per core.
    progress
        Whether to show a progress bar.

    Returns
    -------
    Path
        Folder of the city, such as ``data/AOI_7_Moscow``.

    Raises
    ------
    UsageError
        An argument is out of range, or the folder holds another city or real imagery.
    """
    from geoprep.cpus import usable_cpus
    from geoprep.executors.progress import counting_bar
    from geoprep.sources.cities import get_city
    from geoprep.synth import synthesise

    if labels not in ("roads", "classes"):
        raise UsageError(f"`labels` {labels!r}: expected roads or classes")

    with counting_bar("drawing scenes", quiet=not progress) as advance:
        return synthesise(
            Path(out),
            get_city(city),
            scenes=scenes,
            seed=seed,
            products=(product,) if isinstance(product, str) else tuple(product),
            size=size,
            classes=labels == "classes",
            workers=workers or usable_cpus(),
            on_scene=advance,
        )


@dataclass(frozen=True, slots=True)
class Download:
    """Result of `download`.

    Attributes
    ----------
    folder
        Folder that `build_zarr` takes as ``source``.
    files
        (address, local path, bytes) of every file.
    downloaded, kept
        Number of files downloaded now, and of files that were already there.
    nbytes, missing_nbytes
        Size of all files, and of those that a dry run would download.
    """

    folder: Path
    files: tuple[tuple[str, Path, int], ...]
    downloaded: int
    kept: int
    nbytes: int
    missing_nbytes: int


def download(
    city: str,
    *,
    product: str = "PS-RGB",
    scenes: int | None = None,
    archives: bool = False,
    out: StrPath = "data",
    dry_run: bool = False,
    progress: bool = True,
) -> Download:
    """Download a SpaceNet city from the public bucket. Existing files are checked and kept.

    Parameters
    ----------
    city
        Name of the city; `geoprep cities` lists them.
    product
        Imagery product: ``PS-RGB``, ``PS-MS``, ``MS`` or ``PAN``.
    scenes
        Number of scenes, labelled ones first. Default: all.
    archives
        Download the archives with all products instead of single files.
    out
        Folder for the files, created where missing.
    dry_run
        List objects and bytes, and check that they fit on the disk; download nothing.
    progress
        Whether to show a progress bar.

    Raises
    ------
    UsageError
        ``scenes`` and ``archives`` are both given, or the city is unknown.
    SourceError
        The bucket cannot be reached, or a file is damaged.
    OutputError
        The disk is too small.
    """
    from geoprep.executors.progress import counting_bar
    from geoprep.sources.cities import get_city
    from geoprep.sources.city_downloads import (
        bytes_to_download,
        check_free_space,
        download_files,
        list_archives,
        list_files,
    )

    if archives and scenes is not None:
        raise UsageError("`scenes` selects single files: leave out `archives`")
    known, folder = get_city(city), Path(out)
    files = list_archives(known, folder) if archives else list_files(known, product, folder, scenes)
    listed = tuple((remote.address, path, remote.size) for path, remote in files.items())
    total, missing = sum(size for *_, size in listed), bytes_to_download(files)
    if dry_run:
        check_free_space(files, folder)
        return Download(folder, listed, 0, 0, total, missing)
    with counting_bar("downloading, MB", quiet=not progress, per=10**6) as report:
        kept = download_files(files, folder, report)
    return Download(folder, listed, len(files) - kept, kept, total, 0)
