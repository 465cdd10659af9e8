"""Convert the values, palettes and colours of raster labels to label bytes, by a table of classes.

A raster of roads is a table of two classes, background and road; speeds are a lookup.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from geoprep.compiled import compiled
from geoprep.errors import LabelError
from geoprep.labels.class_rule import REFUSE, UNLABELLED, ClassRule, as_colour, number_limits
from geoprep.speed import (
    BACKGROUND,
    BIN_COUNT,
    BIN_STEP,
    BIN_WIDTH_MPH,
    MAX_MPH,
    MPH_PER_UNIT,
    NODATA,
    UNKNOWN_SPEED,
    to_byte,
)
from geoprep.store import BACKGROUND_NAME

UNLISTED: Final = 254
"""Code of pixels whose value no class has, until `ClassRule.other` decides."""
_CHANNELS: Final = 3
_ROAD: Final = 1
"""Number of the class road among those of a raster of roads."""
_MOST_SHOWN: Final = 6
_MOST_COUNTED: Final = 10_000
"""Values of no class that an error counts: a JPEG may have millions."""

_Entry = tuple[int, tuple[float, ...], tuple[float, ...]]
"""Number of a class, and per band the lowest and the highest value that it has."""


@dataclass(frozen=True, slots=True)
class MaskPixels:
    """Decoded pixels of a window of a raster label."""

    values: NDArray[Any]  # (band, y, x), real numbers, without alpha
    opaque: NDArray[np.bool_] | None  # (y, x), from an alpha or mask band
    palette: NDArray[np.uint8] | None  # (256, 3), colour of each value of the only band
    tags: tuple[float, ...]  # nodata tag of the file, and transparent entries of its palette
    name: str  # of the file, for messages


def label_codes(
    rule: ClassRule, pixels: MaskPixels, used: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.uint8], dict[str, int]]:
    """Return the label bytes of a raster, uint8 (y, x), and remarks on values -> pixels.

    One band holds values; with a palette, colours are looked up in it and numbers are its indices.
    Three bands hold colours; a single number stands for a grey. Nodata tags do not count for a
    value that a class has; a tag of 0 not for roads, as many programs write 0 for background.
    Values that the rule excludes are refused where they are ``used``, bool (y, x); None: anywhere.
    """
    remarks: dict[str, int] = {}
    blank = _unlabelled(rule, pixels)
    tags = set() if rule.nodata else set(pixels.tags)
    if rule.roads and 0 in tags:
        remarks["mask tagged nodata 0, read as no road"] = 1
        tags.remove(0)
    tagged = [(pixels.values == tag).all(axis=0) for tag in tags]
    if rule.speeds is not None:
        blank = np.logical_or.reduce([blank, *tagged])
        codes = _speed_codes(rule.speeds, pixels, blank, used)
    else:
        _require_bands(pixels, (1, _CHANNELS), "a label has one, or red, green and blue")
        codes = _classes(rule, pixels)
        for here in tagged:
            codes[here & (codes == UNLISTED)] = NODATA
        codes[blank] = NODATA
        unlisted = codes == UNLISTED
        if rule.roads:
            codes[unlisted], codes[codes == _ROAD] = BACKGROUND, UNKNOWN_SPEED
        elif unlisted.any():
            if rule.other == REFUSE:
                _refuse(rule, pixels, unlisted if used is None else unlisted & used)
                codes[unlisted] = NODATA
            else:
                remarks |= _decide(rule, pixels, codes, unlisted)
    return codes, remarks


def _unlabelled(rule: ClassRule, pixels: MaskPixels) -> NDArray[np.bool_]:
    """Return where a raster has no label by alpha, NaN or given values, bool (y, x)."""
    values = pixels.values
    blank = np.zeros(values.shape[1:], np.bool_) if pixels.opaque is None else ~pixels.opaque
    if np.issubdtype(values.dtype, np.floating):
        blank |= np.isnan(values).any(axis=0)
    if rule.nodata:
        given = ClassRule((UNLABELLED,), (rule.nodata,), (), UNLABELLED, option="label_nodata")
        blank |= _classes(given, pixels) != UNLISTED
    return blank


def _classes(rule: ClassRule, pixels: MaskPixels) -> NDArray[np.uint8]:
    """Return the number of the class of every pixel, `UNLISTED` where it has none."""
    values = pixels.values
    if pixels.palette is not None:
        codes: NDArray[np.uint8] = _palette_table(rule, pixels.palette.tobytes())[values[0]]
        return codes
    listed = _entries(rule, len(values))
    if len(values) == 1:
        return _codes_of_numbers(listed, rule.tolerance, values[0])
    if values.dtype != np.uint8 or len(values) != _CHANNELS:
        return _nearest(listed, rule.tolerance, np.moveaxis(values, 0, -1))
    codes = np.empty(values.shape[1:], np.uint8)
    _look_up(np.ascontiguousarray(values), _colour_table(listed, rule.tolerance), codes)
    return codes


def _require_bands(pixels: MaskPixels, known: tuple[int, ...], what: str) -> None:
    if len(pixels.values) not in known:
        raise LabelError(
            f"{pixels.name}: has {len(pixels.values)} bands; {what}. Extract one with "
            "gdal_translate -b N IN OUT"
        )


def _refuse(rule: ClassRule, pixels: MaskPixels, unlisted: NDArray[np.bool_]) -> None:
    """Raise LabelError if there are pixels whose value no class has."""
    if not unlisted.any():
        return
    texts, numbers = _most_frequent(pixels, unlisted, _MOST_COUNTED)
    raise unlisted_error(pixels.name, rule, dict(zip(texts, numbers, strict=False)))


class UnlistedError(LabelError):
    """Values of a raster that no class has; ``pixels`` counts them by their text."""

    pixels: dict[str, int]


def unlisted_error(label: str, rule: ClassRule, pixels: Mapping[str, int]) -> UnlistedError:
    """Return the error of a label with these values, which lists the most frequent ones."""
    ordered = sorted(pixels.items(), key=lambda one: -one[1])
    listed = ", ".join(f"{text} ({count:,} pixels)" for text, count in ordered[:_MOST_SHOWN])
    more = f" and {len(ordered) - _MOST_SHOWN} more" if len(ordered) > _MOST_SHOWN else ""
    jpeg = "" if rule.tolerance else "; `tolerance` takes values that JPEG has changed"
    error = UnlistedError(
        f"{label}: has values that no class has: {listed}{more}. Add them to `classes`, "
        f"or say by `other` that they are nodata, or which class they are{jpeg}"
    )
    error.pixels = dict(ordered)
    return error


def _decide(
    rule: ClassRule, pixels: MaskPixels, codes: NDArray[np.uint8], unlisted: NDArray[np.bool_]
) -> dict[str, int]:
    """Replace `UNLISTED` by nodata or a class; return the remarks."""
    texts, numbers = _most_frequent(pixels, unlisted, _MOST_SHOWN)
    is_class = rule.other != UNLABELLED
    codes[unlisted] = rule.names.index(rule.other) if is_class else NODATA
    what = f"class {rule.other}" if is_class else UNLABELLED
    if len(numbers) > _MOST_SHOWN:
        texts, numbers[_MOST_SHOWN:] = [*texts, "(others)"], [sum(numbers[_MOST_SHOWN:])]
    return {f"label value {t} read as {what}": n for t, n in zip(texts, numbers, strict=True)}


def _most_frequent(
    pixels: MaskPixels, where: NDArray[np.bool_], count: int
) -> tuple[list[str], list[int]]:  # fmt: skip
    """Return the most frequent values as text, and the number of pixels of all values."""
    found, counts = np.unique(pixels.values[:, where], axis=1, return_counts=True)
    most = np.argsort(-counts, kind="stable")
    texts = [_shown(found[:, i].tolist(), pixels) for i in most[:count]]
    return texts, counts[most].tolist()


def _shown(value: list[float], pixels: MaskPixels) -> str:
    text = ",".join(f"{part:g}" for part in value)
    if pixels.palette is None:
        return text
    return f"{text} (#{bytes(pixels.palette[int(value[0])].tolist()).hex().upper()})"


def _codes_of_numbers(
    listed: tuple[_Entry, ...], tolerance: int, values: NDArray[Any]
) -> NDArray[np.uint8]:
    if values.dtype not in (np.uint8, np.uint16):
        return _nearest(listed, tolerance, values[..., None])
    codes: NDArray[np.uint8] = _number_table(listed, tolerance, values.dtype.name)[values]
    return codes


def _nearest(
    listed: tuple[_Entry, ...], tolerance: int, values: NDArray[Any]
) -> NDArray[np.uint8]:  # fmt: skip
    """Return the class of the listed value nearest to each of (..., band), the first of several."""
    codes = np.full(values.shape[:-1], UNLISTED, np.uint8)
    nearest = np.full(codes.shape, np.inf)
    values = values.astype(np.float64)
    for number, low, high in listed:
        inside = (values >= low) & (values <= high)
        with np.errstate(invalid="ignore"):  # infinite values
            apart = np.where(inside, 0.0, np.abs(values - np.clip(values, low, high)))
        distance = (apart**2).sum(axis=-1)
        closer = (apart.max(axis=-1) <= tolerance) & (distance < nearest)
        codes[closer], nearest[closer] = number, distance[closer]
    return codes


@lru_cache(maxsize=16)
def _number_table(listed: tuple[_Entry, ...], tolerance: int, dtype: str) -> NDArray[np.uint8]:
    """Return uint8 (value,): the class of every value of a data type."""
    return _nearest(listed, tolerance, np.arange(np.iinfo(dtype).max + 1)[:, None])


@lru_cache(maxsize=64)
def _palette_table(rule: ClassRule, palette: bytes) -> NDArray[np.uint8]:
    """Return uint8 (256,): the class of every index of a palette."""
    colours = np.frombuffer(palette, np.uint8).reshape(256, 3)
    if _are_colours(rule, colours):
        return _nearest(_entries(rule, _CHANNELS), rule.tolerance, colours)
    values = list(_each(rule))
    hexes = [(number, value) for number, value in values if value.startswith("#")]
    by_colour = _nearest(_described(rule, hexes, _CHANNELS), rule.tolerance, colours)
    indices = [one for one in values if one not in hexes]
    by_index = _nearest(_described(rule, indices, 1), 0, np.arange(256)[:, None])
    return np.where(by_index == UNLISTED, by_colour, by_index)


def _are_colours(rule: ClassRule, palette: NDArray[np.uint8]) -> bool:
    """Return whether the values of all classes are colours.

    Three different numbers of a road are indices if the palette lacks that colour.
    """
    for values in rule.values:
        colour = as_colour(values)
        if colour is None and not all(as_colour([value]) for value in values):
            return False
        distinct = rule.roads and colour is not None and len(values) == len(set(values)) > 1
        if distinct and not (palette == colour).all(axis=1).any():
            return False
    return True


def _each(rule: ClassRule) -> Iterator[tuple[int, str]]:
    """Yield the number of a class and a value of it, for all classes and values."""
    for number, (name, values) in enumerate(zip(rule.names, rule.values, strict=True)):
        if not values and name not in (BACKGROUND_NAME, rule.other):
            raise LabelError(
                f"class {name} has no value in raster labels. Give it a value or a colour in "
                "`classes`"
            )
        for value in values:
            yield number, value


@lru_cache(maxsize=32)
def _entries(rule: ClassRule, bands: int) -> tuple[_Entry, ...]:
    """Return the values of all classes in a raster of one band, or of three."""
    return _described(rule, _each(rule), bands)


def _described(
    rule: ClassRule, values: Iterable[tuple[int, str]], bands: int
) -> tuple[_Entry, ...]:  # fmt: skip
    """Return some values of classes as numbers. Raise LabelError if two classes have the same."""
    owner: dict[tuple[tuple[float, ...], tuple[float, ...]], int] = {}
    for number, value in values:
        colour = as_colour(rule.values[number]) if bands == _CHANNELS else None
        colour = colour or as_colour([value])
        limits = number_limits(value)
        if colour is not None and (bands == _CHANNELS or len(set(colour)) == 1):
            low = high = tuple(map(float, colour[:bands]))
        elif limits is not None:
            low, high = ((limit,) * bands for limit in limits)
        else:
            what = "the colour" if colour else "the value"
            kind = "of colours" if bands == _CHANNELS else "of one band without a palette"
            raise LabelError(
                f"class {rule.names[number]} has {what} {value}, but its label is a raster {kind}. "
                f"Give a {'colour' if bands == _CHANNELS else 'number'} in `{rule.option}`"
            )
        if owner.setdefault((low, high), number) != number:
            raise LabelError(
                f"classes {rule.names[owner[low, high]]} and {rule.names[number]} both have the "
                f"value {','.join(f'{part:g}' for part in low)}. Give each value to one class in "
                f"`{rule.option}`"
            )
    return tuple((number, low, high) for (low, high), number in owner.items())


@lru_cache(maxsize=2)
def _colour_table(listed: tuple[_Entry, ...], tolerance: int) -> NDArray[np.uint8]:
    """Return uint8 (256, 256, 256): the class of every colour; 16 MiB."""
    table = np.full((256, 256, 256), UNLISTED, np.uint8)
    reach = [
        (np.maximum(np.ceil(low) - tolerance, 0), np.minimum(np.floor(high) + tolerance, 255))
        for _, low, high in listed
    ]
    for (number, *_), (low, high) in zip(listed, reach, strict=True):
        near = [
            one
            for one, (start, end) in zip(listed, reach, strict=True)
            if (start <= high).all() and (end >= low).all()
        ]
        axes = [np.arange(a, b + 1) for a, b in zip(low, high, strict=True)]
        box = tuple(slice(int(a), int(b) + 1) for a, b in zip(low, high, strict=True))
        table[box] = number
        if len(near) > 1:
            cube = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
            table[box] = _nearest(tuple(near), tolerance, cube)
    return table


@compiled
def _look_up(values: NDArray[np.uint8], table: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    for y in range(out.shape[0]):
        for x in range(out.shape[1]):
            out[y, x] = table[values[0, y, x], values[1, y, x], values[2, y, x]]


def _speed_codes(
    unit: str, pixels: MaskPixels, blank: NDArray[np.bool_], used: NDArray[np.bool_] | None
) -> NDArray[np.uint8]:
    """Return the label bytes of speeds. Raise LabelError if a used value is no speed."""
    values = pixels.values
    if values.dtype == np.uint8 and len(values) == 1:
        blank = blank | (values[0] == NODATA)
    codes, strange = _bin_codes(pixels) if unit == "bins" else _mph_codes(unit, pixels)
    refused = strange & ~blank if used is None else strange & ~blank & used
    if refused.any():
        found = np.unique(values[0][refused])
        if unit == "bins":
            what = (
                f"holds {', '.join(f'{value:g}' for value in found[:5])}, which are not bins (1 to "
                f"{BIN_COUNT}, or {BIN_STEP} to {BIN_STEP * BIN_COUNT}). Check `label_speeds`"
            )
        else:
            low, high = found[[0, -1]] * MPH_PER_UNIT[unit]
            shown = f"{low:g}" if low == high else f"{low:g} to {high:g}"
            what = (
                f"holds {shown} mph as `label_speeds` {unit}; speeds are 0 to "
                f"{MAX_MPH:g}: check the unit"
            )
        raise LabelError(
            f"{pixels.name}: {what}, and give values without a label as `label_nodata`"
        )
    codes[blank | strange] = NODATA
    return codes


def _mph_codes(
    unit: str, pixels: MaskPixels
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:  # fmt: skip
    """Return the label bytes of speeds, and where values are none."""
    _require_bands(pixels, (1,), "a mask of speeds has one")
    values = pixels.values[0]
    mph = values * MPH_PER_UNIT[unit]
    strange = ~((mph >= 0) & (mph <= MAX_MPH))
    codes = np.where(mph > 0, to_byte(np.where(strange, 0, mph)), np.uint8(BACKGROUND))
    if unit == "mph" and values.dtype == np.uint8:  # 254 as `geoprep export` writes it
        unknown = values == UNKNOWN_SPEED
        codes[unknown], strange = UNKNOWN_SPEED, strange & ~unknown
    return codes, strange


def _bin_codes(pixels: MaskPixels) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return the central speed of every pixel's bin, and where values are no bins.

    There is one band, or one per bin and perhaps one of any road.
    """
    _require_bands(pixels, (1, BIN_COUNT, BIN_COUNT + 1), "a mask of bins has one, or one per bin")
    mph = to_byte((np.arange(BIN_COUNT) + 0.5) * BIN_WIDTH_MPH + 0.5).tolist()  # 6, 16, ... 66
    values = pixels.values
    if len(values) > 1:
        codes = np.zeros(values.shape[1:], np.uint8)
        if len(values) > BIN_COUNT:
            codes[values[BIN_COUNT] > 0] = UNKNOWN_SPEED
        for byte, band in zip(mph, values, strict=False):
            codes[band > 0] = byte
        return codes, np.zeros(codes.shape, np.bool_)
    bins = list(enumerate([BACKGROUND, *mph]))
    numbers = [(byte, float(n * step)) for step in (1, BIN_STEP) for n, byte in bins]
    listed = tuple((byte, (number,), (number,)) for byte, number in numbers)
    codes = _codes_of_numbers(listed, 0, values[0])
    return codes, codes == UNLISTED
