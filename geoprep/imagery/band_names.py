"""Bands by name: which bands of an image are those of a model, or of another image."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Final, NamedTuple

from geoprep.errors import ImageError, UsageError

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


_NUMBER: Final = re.compile(r"[+-]?\d+")


class Match(NamedTuple):
    """The bands of an image that are wanted, as positions among those that it offers."""

    places: tuple[int, ...]  # empty if a name is missing
    missing: tuple[str, ...] = ()  # names of wanted bands that the image lacks
    unnamed: bool = False  # some bands were taken in order, as one side has no names for them


def parse_bands(text: str | None) -> tuple[int | str, ...]:
    """Return numbers from 1 up and names of bands from text; none of None.

    Examples
    --------
    >>> parse_bands("5,3,2"), parse_bands("red, nir")
    ((5, 3, 2), ('red', 'nir'))
    """
    parts = [] if text is None else [part.strip() for part in text.split(",")]
    bands = tuple(int(part) if _NUMBER.fullmatch(part) else part for part in parts)
    if any(band == "" or (isinstance(band, int) and band < 1) for band in bands):
        raise UsageError(
            "bands",
            f"{text}: expected names, or numbers from 1 up as gdalinfo has them, such as 5,3,2",
        )
    return bands


def parse_names(text: str | None) -> tuple[str, ...]:
    """Return different names of bands from text; none of None."""
    names = tuple(map(str, parse_bands(text)))
    if len({*names}) < len(names):
        raise UsageError("band_names", f"{text}: give each band a name of its own")
    return names


def band_numbers(bands: Sequence[int | str], offered: Sequence[Names], of: str) -> tuple[int, ...]:
    """Return the numbers, from 1, of bands that are given by number or by name.

    Raises ImageError if not one band of the image ``of`` is meant.
    """
    numbers = []
    for band in bands:
        places = [
            number
            for number, names in enumerate(offered, start=1)
            if band == number or str(band).casefold() in map(str.casefold, names)
        ]
        if len(places) != 1:
            listed = ", ".join(names[0] for names in offered)
            raise ImageError(
                f"{of} has {len(offered)} band(s), {listed}, and {len(places) or 'no'} band "
                f"{band}: choose `bands`"
            )
        numbers.append(places[0])
    return tuple(numbers)


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
    places = _find_bands(wanted, offered)
    lacking = [i for i in range(len(wanted)) if i not in places]
    taken = range(len(offered)) if default is None else default
    left = [j for j in taken if j not in places.values()]
    own, others = _distinct(wanted), _distinct(offered)
    pairs = list(zip(lacking, left, strict=False))
    if lacking and (len(lacking) != len(left) or any(own[i] and others[j] for i, j in pairs)):
        return Match((), tuple(wanted[i][0] for i in lacking))
    places.update(pairs)
    return Match(tuple(places[i] for i in range(len(wanted))), (), bool(pairs))


def partner_bands(own: Sequence[str], given: Sequence[str]) -> tuple[list[int], list[str]]:
    """Return the given band for each own band, by name, and the own names without a partner.

    Bands without a partner, and bands without a name, take the given bands in turn.

    Examples
    --------
    >>> partner_bands(["blue", "green", "Red", "nir"], ["red", "green", "blue"])
    ([2, 1, 0, 0], ['nir'])
    """
    own_names, given_names = ([(name, common_name(name)) for name in side] for side in (own, given))
    places = _find_bands(own_names, given_names)
    lacking = [name for i, name in enumerate(own) if name and i not in places]
    return [places.get(i, i % len(given)) for i in range(len(own))], lacking


def _find_bands(wanted: Sequence[Names], offered: Sequence[Names]) -> dict[int, int]:
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


def shared_names(images: Sequence[Sequence[Names]]) -> list[tuple[Names, ...]]:
    """Return the names of the bands of images; if most do not share them, colours or numbers.

    Examples
    --------
    >>> shared_names([[("a.tif: 1", "red"), ("a.tif: 2", "")], [("b", "red"), ("b: 2", "")]])[0]
    (('red',), ('band 2',))
    """
    counts = Counter(tuple(names[0] for names in bands) for bands in images)
    if not counts or len(counts) == 1 or 2 * max(counts.values()) > len(images):
        return [tuple(bands) for bands in images]
    return [
        tuple((next(filter(None, names[1:]), f"band {n}"),) for n, names in enumerate(bands, 1))
        for bands in images
    ]


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
