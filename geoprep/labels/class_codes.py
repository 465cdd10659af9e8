"""Convert the values, palettes and colours of raster labels to numbers of classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from geoprep.compiled import compiled
from geoprep.errors import LabelError
from geoprep.labels.class_rule import REFUSE, UNLABELLED, ClassRule, as_colour, as_number
from geoprep.labels.mask_rule import MaskPixels, MaskRule
from geoprep.speed import NODATA
from geoprep.store import BACKGROUND_NAME

UNLISTED: Final = 254
"""Byte of pixels whose value no class has, until `ClassRule.other` decides."""
_CHANNELS: Final = 3
_MOST_SHOWN: Final = 6

_Entry = tuple[int, tuple[float, ...]]
"""Number of a class, and a number or a colour that it has."""


def class_codes(rule: ClassRule, pixels: MaskPixels) -> tuple[NDArray[np.uint8], dict[str, int]]:
    """Return the label bytes of a raster.

    One band holds values; with a palette, colours are looked up in it and numbers are its indices.
    Three bands hold colours; a single number stands for a grey.

    Returns
    -------
    ndarray
        uint8 (y, x): number of the class, 255 without a label.
    dict
        Remark on values that no class has -> number of pixels.

    Raises
    ------
    LabelError
        The raster has values that no class has, or the classes do not fit its bands.
    """
    values = pixels.values
    if len(values) == 1:
        codes = _codes_of_values(rule, pixels)
    elif len(values) == _CHANNELS:
        codes = _codes_of_colours(rule, _as_bytes(pixels))
    else:
        raise LabelError(
            f"{pixels.name}: has {len(values)} bands; a label has one, or red, green and blue. "
            "Extract one with gdal_translate -b N IN OUT"
        )
    _remove_unlabelled(rule, pixels, codes)
    unlisted = codes == UNLISTED
    if not unlisted.any():
        return codes, {}
    return codes, _decide(rule, pixels, codes, unlisted)


def _remove_unlabelled(rule: ClassRule, pixels: MaskPixels, codes: NDArray[np.uint8]) -> None:
    """Write 255 where a raster has no label: by alpha, NaN, given values, or the nodata tag.

    The tag does not count for a value that a class has.
    """
    codes[MaskRule(nodata=rule.nodata).unknown(replace(pixels, tag=None))] = NODATA
    if rule.nodata is None and pixels.tag is not None:
        codes[(codes == UNLISTED) & (pixels.values == pixels.tag).all(axis=0)] = NODATA


def _decide(
    rule: ClassRule, pixels: MaskPixels, codes: NDArray[np.uint8], unlisted: NDArray[np.bool_]
) -> dict[str, int]:
    """Replace `UNLISTED` as the rule says; return the remarks."""
    found, counts = np.unique(pixels.values[:, unlisted], axis=1, return_counts=True)
    most = np.argsort(-counts, kind="stable")
    texts = [_shown(found[:, i].tolist(), pixels) for i in most[:_MOST_SHOWN]]
    numbers = counts[most].tolist()
    if rule.other == REFUSE:
        listed = ", ".join(f"{t} ({n:,} pixels)" for t, n in zip(texts, numbers, strict=False))
        more = f" and {len(most) - len(texts)} more" if len(most) > len(texts) else ""
        jpeg = "" if rule.tolerance else "; `tolerance` takes values that JPEG has changed"
        raise LabelError(
            f"{pixels.name}: has values that no class has: {listed}{more}. Add them to `classes`, "
            f"or say by `other` that they are nodata, or which class they are{jpeg}"
        )
    is_class = rule.other != UNLABELLED
    codes[unlisted] = rule.names.index(rule.other) if is_class else NODATA
    what = f"class {rule.other}" if is_class else UNLABELLED
    if len(most) > len(texts):
        texts, numbers[_MOST_SHOWN:] = [*texts, "(others)"], [sum(numbers[_MOST_SHOWN:])]
    return {f"label value {t} read as {what}": n for t, n in zip(texts, numbers, strict=True)}


def _shown(value: list[float], pixels: MaskPixels) -> str:
    text = ",".join(f"{part:g}" for part in value)
    if pixels.palette is None:
        return text
    return f"{text} (#{bytes(pixels.palette[int(value[0])].tolist()).hex().upper()})"


def _codes_of_values(rule: ClassRule, pixels: MaskPixels) -> NDArray[np.uint8]:
    """Return the class of every pixel of one band, `UNLISTED` where it has none."""
    values = pixels.values[0]
    if pixels.palette is not None:
        table = _palette_table(rule, pixels.palette.tobytes())
    elif values.dtype in (np.uint8, np.uint16):
        table = _number_table(_numbers(rule), rule.tolerance, values.dtype.name)
    else:
        return _nearest(_numbers(rule), rule.tolerance, values[..., None])
    codes: NDArray[np.uint8] = table[values]
    return codes


def _nearest(
    listed: tuple[_Entry, ...], tolerance: int, values: NDArray[Any]
) -> NDArray[np.uint8]:  # fmt: skip
    """Return the class of the nearest listed value, the first of equally near ones.

    Parameters
    ----------
    listed
        Numbers, or colours.
    tolerance
        Largest difference in any band.
    values
        (..., band).
    """
    codes = np.full(values.shape[:-1], UNLISTED, np.uint8)
    nearest = np.full(codes.shape, np.inf)
    for number, value in listed:
        apart = values.astype(np.float64) - value
        distance = (apart**2).sum(axis=-1)
        closer = (np.abs(apart).max(axis=-1) <= tolerance) & (distance < nearest)
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
    if _are_colours(rule):
        return _nearest(_colours(rule), rule.tolerance, colours)
    table = np.full(256, UNLISTED, np.uint8)
    for number, values in enumerate(rule.values):
        for value in values:
            if (colour := as_colour([value])) is not None:
                near = np.abs(colours.astype(int) - colour).max(axis=1) <= rule.tolerance
                table[near & (table == UNLISTED)] = number
    indices = [(n, (float(_number(rule, n, v)),)) for n, v in _each(rule) if as_colour([v]) is None]
    listed = _nearest(tuple(indices), 0, np.arange(256)[:, None])
    return np.where(listed == UNLISTED, table, listed)


def _are_colours(rule: ClassRule) -> bool:
    """Return whether the values of all classes are colours."""
    return all(
        as_colour(values) is not None or all(as_colour([value]) for value in values)
        for values in rule.values
    )


def _each(rule: ClassRule) -> Iterator[tuple[int, str]]:
    """Yield the number of a class and a value of it, for all classes and values.

    Raises
    ------
    LabelError
        A class has no value, and is not one that the rule gives other pixels to.
    """
    for number, (name, values) in enumerate(zip(rule.names, rule.values, strict=True)):
        if not values and name not in (BACKGROUND_NAME, rule.other):
            raise LabelError(
                f"class {name} has no value in raster labels. Give it a value or a colour in "
                "`classes`"
            )
        for value in values:
            yield number, value


def _number(rule: ClassRule, number: int, value: str) -> float:
    colour = as_colour([value])
    if colour is not None and len(set(colour)) == 1:
        return float(colour[0])
    parsed = as_number(value)
    if parsed is None:
        what = "the colour" if colour else "the value"
        raise LabelError(
            f"class {rule.names[number]} has {what} {value}, but its label is a raster of one band "
            "without a palette. Give a number in `classes`"
        )
    return parsed


@lru_cache(maxsize=16)
def _numbers(rule: ClassRule) -> tuple[_Entry, ...]:
    """Return the numbers of all classes, for a raster of one band."""
    return _distinct(rule, [(n, (_number(rule, n, value),)) for n, value in _each(rule)])


@lru_cache(maxsize=16)
def _colours(rule: ClassRule) -> tuple[_Entry, ...]:
    """Return the colours of all classes, for a raster of three bands."""
    found: list[_Entry] = []
    whole = [as_colour(values) for values in rule.values]
    for number, value in _each(rule):
        colour = whole[number] or as_colour([value])
        if colour is None:
            grey = as_number(value)
            if grey is None:
                raise LabelError(
                    f"class {rule.names[number]} has the value {value}, but its label is a raster "
                    "of colours. Give a colour in `classes`"
                )
            found.append((number, (grey,) * _CHANNELS))
        else:
            found.append((number, tuple(map(float, colour))))
    return _distinct(rule, list(dict.fromkeys(found)))


def _distinct(rule: ClassRule, entries: list[_Entry]) -> tuple[_Entry, ...]:
    """Return the entries. Raise LabelError if two classes have the same value."""
    owner: dict[tuple[float, ...], int] = {}
    for number, value in entries:
        if owner.setdefault(value, number) != number:
            shown = ",".join(f"{part:g}" for part in value)
            raise LabelError(
                f"classes {rule.names[owner[value]]} and {rule.names[number]} both have the value "
                f"{shown}. Give each value to one class in `classes`"
            )
    return tuple(entries)


def _as_bytes(pixels: MaskPixels) -> NDArray[np.uint8]:
    """Return colours as uint8 (3, y, x)."""
    values = pixels.values
    if values.dtype != np.uint8:
        if values.size and not (values.min() >= 0 and values.max() <= NODATA):
            raise LabelError(
                f"{pixels.name}: has three bands of {values.dtype} with values outside 0 to 255; "
                "colours are 8-bit. Convert it with gdal_translate -ot Byte -scale"
            )
        values = values.astype(np.uint8)
    return np.ascontiguousarray(values)


def _codes_of_colours(rule: ClassRule, values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the class of every pixel of three bands, `UNLISTED` where it has none."""
    out = np.empty(values.shape[1:], np.uint8)
    _look_up(values, _colour_table(_colours(rule), rule.tolerance), out)
    return out


@lru_cache(maxsize=2)
def _colour_table(listed: tuple[_Entry, ...], tolerance: int) -> NDArray[np.uint8]:
    """Return uint8 (256, 256, 256): the class of every colour; 16 MiB."""
    table = np.full((256, 256, 256), UNLISTED, np.uint8)
    for _, colour in listed:
        low = [max(0, int(part) - tolerance) for part in colour]
        high = [min(256, int(part) + tolerance + 1) for part in colour]
        axes = [np.arange(a, b) for a, b in zip(low, high, strict=True)]
        near = [
            entry
            for entry in listed
            if all(abs(a - b) <= 2 * tolerance for a, b in zip(entry[1], colour, strict=True))
        ]
        cube = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
        table[tuple(slice(a, b) for a, b in zip(low, high, strict=True))] = _nearest(
            tuple(near), tolerance, cube
        )
    return table


@compiled
def _look_up(values: NDArray[np.uint8], table: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    for y in range(out.shape[0]):
        for x in range(out.shape[1]):
            out[y, x] = table[values[0, y, x], values[1, y, x], values[2, y, x]]
