"""SpaceNet cities: list them, make a synthetic one, or download a real one."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from geoprep.options import local_output, made, option, options_of, with_options, workers_option

if TYPE_CHECKING:
    from geoprep.sources.cities import City


def list_cities() -> dict[str, City]:
    """Return the SpaceNet cities by name, with their products and archives."""
    from geoprep.sources.cities import CITIES

    return dict(CITIES)


@dataclass(frozen=True, kw_only=True)
class SynthOptions:
    """Options: of a synthetic city."""

    city: str = option(
        MISSING,
        "Name of a SpaceNet city, which decides location, names and label schema; `geoprep cities` "
        "lists them.",
        "TEXT",
    )
    scenes: int = option(24, "Number of scenes.", "N", least=1)
    out: Path = option(Path("data"), "Folder for the city.", "DIRECTORY", parse=local_output)
    seed: int = option(0, "Random seed; each seed gives a different city.", "N", least=0)
    product: tuple[Literal["PS-RGB", "PS-MS", "PAN"], ...] = option(
        ("PS-RGB",),
        "Imagery product, or several: PS-RGB (3 bands, uint8), PS-MS (8 bands, 11 bits in uint16) "
        "or PAN (1 band, 11 bits in uint16).",
    )
    # 16-bit numbers tell the things in a scene apart.
    size: int = option(1300, "Side of a scene in pixels.", "PIXELS", least=64, most=4096)
    labels: Literal["roads", "classes"] = option(
        "roads",
        "roads: road labels as GeoJSON. classes: also classes/, with a raster of land cover per "
        "scene (background, building, road, water, tree) and classes.yaml.",
    )
    workers: int | None = workers_option()


@with_options(options_of(SynthOptions))
def synthesize(city: str, *, progress: bool = True, **options: Any) -> Path:  # noqa: ANN401 - fields of `SynthOptions`
    """Make a synthetic city in SpaceNet layout: georeferenced scenes with road labels.

    The same seed gives the same files. Existing scenes of the same city are kept.

    Parameters
    ----------
    **options
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

    given = made(SynthOptions, {"city": city, **options})
    with counting_bar("drawing scenes", quiet=not progress) as advance:
        return synthesise(
            given.out,
            get_city(given.city),
            scenes=given.scenes,
            seed=given.seed,
            products=given.product,
            size=given.size,
            classes=given.labels == "classes",
            workers=given.workers or usable_cpus(),
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


@dataclass(frozen=True, kw_only=True)
class DownloadOptions:
    """Source: what is downloaded, and where to."""

    city: str = option(MISSING, "Name of the city; `geoprep cities` lists them.", "TEXT")
    product: str = option("PS-RGB", "Imagery product: PS-RGB, PS-MS, MS or PAN.", "TEXT")
    scenes: int | None = option(
        None, "Number of scenes, labelled ones first. Default: all.", "N", least=1
    )
    out: Path = option(
        *(Path("data"), "Folder for the files, created where missing.", "DIRECTORY"),
        section="Output",
        parse=local_output,
    )
    dry_run: bool = option(
        False,
        "List objects and bytes, and check that they fit on the disk; download nothing.",
        section="Run",
    )


@with_options(options_of(DownloadOptions))
def download(city: str, *, progress: bool = True, **options: Any) -> Download:  # noqa: ANN401 - fields of `DownloadOptions`
    """Download a SpaceNet city from the public bucket. Existing files are checked and kept.

    Parameters
    ----------
    **options
    progress
        Whether to show a progress bar.

    Raises
    ------
    UsageError
        The city or product is unknown.
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
        list_files,
    )

    given = made(DownloadOptions, {"city": city, **options})
    folder = given.out
    files = list_files(get_city(given.city), given.product, folder, given.scenes)
    listed = tuple((remote.address, path, remote.size) for path, remote in files.items())
    total, missing = sum(size for *_, size in listed), bytes_to_download(files)
    if given.dry_run:
        check_free_space(files, folder)
        return Download(folder, listed, 0, 0, total, missing)
    with counting_bar("downloading, MB", quiet=not progress, per=10**6) as report:
        kept = download_files(files, folder, report)
    return Download(folder, listed, len(files) - kept, kept, total, 0)
