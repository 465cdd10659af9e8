"""Bands by name: which bands of an image are those of a model, or of another image."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Final, NamedTuple

Names = tuple[str, ...]
"""Names of one band, the main name first; empty names do not count."""

_COMMON: Final = {
    *("coastal", "blue", "green", "yellow", "red", "rededge", "nir", "swir", "mwir", "lwir"),
    *("tir", "pan", "cirrus", "nir08", "nir09", "swir16", "swir22", "lwir11", "lwir12"),
    *("green05", "rededge071", "rededge075", "rededge078"),
}
"""Common names of STAC, and the colours of GDAL."""
_WRITTEN_APART: Final = (
    (re.compile(r"red[ _-]?edge"), "rededge"),
    (re.compile(r"near[ _-]?infra[ _-]?red"), "nir"),
    (re.compile(r"pan[ _-]?chromatic"), "pan"),
)
_NO_NAME: Final = re.compile(r"(band|layer|channel|gr[ae]y|undefined)?[ _.#-]*\d*")


class Match(NamedTuple):
    """The bands of an image that are wanted, as positions among those that it offers."""

    places: tuple[int, ...]  # empty if a name is missing
    missing: tuple[str, ...] = ()  # names of wanted bands that the image lacks
    unnamed: bool = False  # some bands were taken in order, as one side has no names for them


def common_name(name: str) -> str:
    """Return the common name in the name of a band; "" if it has none, or several.

    Examples
    --------
    >>> [common_name(name) for name in ("Band 4 (Red)", "Near-Infrared", "B04", "nir/red")]
    ['red', 'nir', '', '']
    """
    name = name.casefold()
    for pattern, common in _WRITTEN_APART:
        name = pattern.sub(common, name)
    words = {word for word in re.findall(r"[a-z0-9]+", name) if word in _COMMON}
    return words.pop() if len(words) == 1 else ""


def match_bands(
    wanted: Sequence[Names], offered: Sequence[Names], default: Sequence[int] | None = None
) -> Match:
    """Return which of the offered bands are the wanted ones.

    A band is the one with the same name, of those that no other band of its side has. Bands left
    over on both sides belong together in their order, if they are as many and one of each pair has
    no name; of the offered ones those of ``default`` count, None: all.

    Examples
    --------
    >>> rgb = [("red",), ("green",), ("blue",)]
    >>> match_bands(rgb, [("B02", "blue"), ("B03", "green"), ("B04", "red")]).places
    (2, 1, 0)
    >>> match_bands(rgb, [("nir",), ("red",), ("green",)]).missing
    ('blue',)
    """
    places = find_bands(wanted, offered)
    lacking = [i for i in range(len(wanted)) if i not in places]
    taken = range(len(offered)) if default is None else default
    left = [j for j in taken if j not in places.values()]
    own, others = _distinct(wanted), _distinct(offered)
    pairs = list(zip(lacking, left, strict=False))
    if lacking and (len(lacking) != len(left) or any(own[i] and others[j] for i, j in pairs)):
        return Match((), tuple(wanted[i][0] for i in lacking))
    places.update(pairs)
    return Match(tuple(places[i] for i in range(len(wanted))), (), bool(pairs))


def find_bands(wanted: Sequence[Names], offered: Sequence[Names]) -> dict[int, int]:
    """Return the places of the offered bands that have names of wanted ones, by those of these."""
    places: dict[int, int] = {}
    called = [[names[0]] for names in wanted], [[names[0]] for names in offered]
    # Then names that say less, such as band 4.
    for own, others in ((_distinct(wanted), _distinct(offered)), called):
        for i, names in enumerate(own):
            hits = (j for name in names for j, other in enumerate(others) if name in other)
            place = next((j for j in hits if j not in places.values()), None)
            if i not in places and place is not None:
                places[i] = place
    return places


def has_names(bands: Sequence[Names]) -> bool:
    """Return whether any band has a name that says more than its number."""
    return any(_distinct(bands))


def _distinct(bands: Sequence[Names]) -> list[list[str]]:
    """Return the names of every band that say something, and that no other band has."""
    folded = [
        [name for name in dict.fromkeys(map(str.casefold, names)) if not _NO_NAME.fullmatch(name)]
        for names in bands
    ]
    counts = Counter(chain.from_iterable(folded))
    return [[name for name in names if counts[name] == 1] for names in folded]
