"""Scenes whose bands are files of their own, as of Sentinel-2 (``*_B02_10m.jp2``) and Landsat."""

from __future__ import annotations

import glob
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from fnmatch import translate
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from geoprep.errors import GeoprepError, UsageError
from geoprep.imagery.band_names import common_name
from geoprep.imagery.description import Stated
from geoprep.imagery.headers import describe
from geoprep.sources.scene import natural_key
from geoprep.storage.addresses import is_remote, joined
from geoprep.texts import counted

_BANDS: Final = re.compile(r"\{([^{}/]*,[^{}/]*)\}")
_BAND: Final = re.compile(
    r"(?<![a-z0-9])(sr_b\d+|st_b\d+|b\d{1,2}a?|band_?\d+|red|green|blue|nir|swir\d*)(?![a-z0-9])",
    re.IGNORECASE,
)


class BandFiles(NamedTuple):
    """The files of the bands of one scene, in the order of their names."""

    address: str  # of all, `joined`
    stated: Stated  # names of the bands


def scenes_of_bands(
    pattern: str, matching: Callable[[str], Sequence[str]]
) -> dict[str, BandFiles] | None:
    """Return scenes by a path that names them, of a pattern such as ``*_{B02,B03}.jp2``.

    ``matching`` returns the files of a pattern without braces. A scene has all files whose names
    differ by the band only; if folders have files of equal names, those of one folder. A file that
    is missing is named, so that its scene fails. None: the pattern has no braces.
    """
    match = _BANDS.search(pattern)
    if match is None:
        return None
    bands = [band.strip() for band in match[1].split(",")]
    before, after = pattern[: match.start()], pattern[match.end() :]
    if "/" in after or not all(bands) or len({*bands}) < len(bands):
        raise UsageError(
            "images",
            f"{pattern}: write different names of bands in the name of the files, such as "
            "'*_{B02,B03,B04,B08}.jp2'",
        )
    around = [translate(part).removesuffix(r"\Z") for part in (before.rpartition("/")[2], after)]
    found: list[tuple[str, str, str, str]] = []  # band, folder, text before and after the band
    for band in bands:
        named = re.compile(f"({around[0]}){re.escape(band)}({around[1]})")
        for address in matching(f"{before}{glob.escape(band)}{after}"):
            folder, _, name = address.rpartition("/")
            if parts := named.fullmatch(name):
                found.append((band, folder, parts[1], parts[2]))
    counts = Counter((band, *name) for band, _, *name in found)
    apart = max(counts.values(), default=0) > 1
    scenes = defaultdict[tuple[str, ...], dict[str, str]](dict)
    for band, folder, start, end in found:
        scenes[folder if apart else "", start, end][band] = folder
    return {
        _path(next(iter(folders.values())), start, end): BandFiles(
            joined(
                f"{folders.get(band, next(iter(folders.values())))}/{start}{band}{end}"
                for band in bands
            ),
            Stated(tuple((band, common_name(band)) for band in bands)),
        )
        for (_, start, end), folders in scenes.items()
    }


def _path(folder: str, start: str, end: str) -> str:
    """Return the path of a scene without its band; the folder, if its files have other names."""
    stem, suffix = PurePosixPath(f"_{end}").stem[1:], PurePosixPath(f"_{end}").suffix
    name = re.sub(r"^[_\-. ]+", "", start.rstrip("_-. ") + stem)
    return f"{folder}/{name}{suffix}" if name else f"{folder}{suffix}"


def bands_noted(addresses: Sequence[str]) -> list[str]:
    """Return a note if images are bands of scenes by their names, and of one grid and band each."""
    alike = defaultdict[str, dict[str, str]](dict)
    for address in addresses:
        folder, _, name = address.rpartition("/")
        for band in _BAND.finditer(name):
            alike[f"{folder}/{name[: band.start()]}{{}}{name[band.end() :]}"][band[0]] = address
    scenes = {key: files for key, files in alike.items() if len(files) > 1}
    if not scenes:
        return []
    key, files = next(iter(scenes.items()))
    try:
        first, second = map(describe, [*files.values()][:2])
    except GeoprepError:
        return []
    if is_remote(key) or first.grid != second.grid or len(first.bands) + len(second.bands) > 2:
        return []
    bands = ",".join(sorted(files, key=natural_key))
    name = key.rpartition("/")[2]
    start = name.index("{")
    tail = name[max(start - 1, 0) :].format(f"{{{bands}}}")
    return [
        f"{counted(sum(map(len, scenes.values())), 'image')} look like the bands of "
        f"{counted(len(scenes), 'scene')}: their names differ by {bands} only. `images` "
        f"'{'*' if start else '*/'}{tail}' makes scenes of them"
    ]
