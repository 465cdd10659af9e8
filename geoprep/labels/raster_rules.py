"""Convert the values, palettes and colours of raster labels to label bytes.

There are three kinds of rasters: `RoadMask` (values that are road), `SpeedRaster` (values that are
speeds) and `ClassRaster` (values of classes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import LabelError, UsageError
from geoprep.labels.classes import (
    NONE,
    REFUSE,
    Classes,
    parse_classes,
    parse_values,
    refused_values,
)
from geoprep.labels.value_tables import CHANNELS, UNLISTED, MaskPixels, ValueTable, numbers_of_band
from geoprep.speed import (
    BACKGROUND,
    BIN_COUNT,
    BIN_MPH,
    BIN_STEP,
    MAX_MPH,
    MPH_PER_UNIT,
    NODATA,
    UNKNOWN_SPEED,
    to_byte,
)
from geoprep.store.classes import BACKGROUND_NAME

_MOST_BYTE: Final = 255
_MOST_SHOWN: Final = 6
_MOST_COUNTED: Final = 10_000
"""Values of no class that an error counts: a JPEG may have millions."""
_BIN_BYTES: Final = (BACKGROUND, *to_byte(BIN_MPH).tolist())
"""Label bytes of background and of the central speed of every bin: 0, 6, 16 to 66."""


@dataclass(frozen=True, slots=True)
class RoadMask:
    """The rule of rasters of roads without speeds: other values than these are background."""

    values: tuple[str, ...]
    nodata: tuple[str, ...] = ()

    def label_bytes(
        self, pixels: MaskPixels, used: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, int]]:
        """Return the label, uint8 (y, x), and remarks; no value is refused, ``used`` or not.

        One band holds values; with a palette, colours are looked up in it and numbers are its
        indices. Three bands hold colours; a single number stands for a grey.
        """
        pixels.require_bands((1, CHANNELS), "a label has one, or red, green and blue")
        numbers = ValueTable(("road",), (self.values,), "label_values").numbers(pixels)
        codes = np.where(numbers == UNLISTED, np.uint8(BACKGROUND), np.uint8(UNKNOWN_SPEED))
        tags, remarks = pixels.road_tags(self.nodata)
        codes[pixels.has(tags) & (numbers == UNLISTED)] = _blank(self.nodata)
        codes[pixels.unlabelled(self.nodata)] = _blank(self.nodata)
        return codes, remarks


@dataclass(frozen=True, slots=True)
class SpeedRaster:
    """The rule of rasters of speeds: mph, kmh, or the bins of CRESI's masks. 0 is background."""

    unit: str
    nodata: tuple[str, ...] = ()

    def label_bytes(
        self, pixels: MaskPixels, used: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, int]]:
        """Return the label, uint8 (y, x), and remarks.

        Raises LabelError if a labelled pixel that is ``used``, bool (y, x), is no speed.
        """
        values = pixels.values
        tags, remarks = pixels.road_tags(self.nodata)
        blank = pixels.unlabelled(self.nodata) | pixels.has(tags)
        if values.dtype == np.uint8 and len(values) == 1:
            blank |= values[0] == NODATA
        codes, strange = _bin_bytes(pixels) if self.unit == "bins" else self._mph_bytes(pixels)
        refused = strange & ~blank if used is None else strange & ~blank & used
        if refused.any():
            raise LabelError(
                f"{pixels.name}: {self._strange(np.unique(values[0][refused]))}, and give values "
                "without a label as `label_nodata`"
            )
        codes[strange] = NODATA
        codes[blank] = _blank(self.nodata)
        return codes, remarks

    def _mph_bytes(self, pixels: MaskPixels) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Return the label bytes of speeds, and where values are none."""
        pixels.require_bands((1,), "a mask of speeds has one")
        values = pixels.values[0]
        mph = values * MPH_PER_UNIT[self.unit]
        strange = ~((mph >= 0) & (mph <= MAX_MPH))
        codes = np.where(mph > 0, to_byte(np.where(strange, 0, mph)), np.uint8(BACKGROUND))
        if self.unit == "mph" and values.dtype == np.uint8:  # 254 as `geoprep export` writes it
            unknown = values == UNKNOWN_SPEED
            codes[unknown], strange = UNKNOWN_SPEED, strange & ~unknown
        return codes, strange

    def _strange(self, values: NDArray[Any]) -> str:
        """Return what is wrong with ascending values that are no speeds."""
        if self.unit == "bins":
            return (
                f"holds {', '.join(f'{value:g}' for value in values[:5])}, which are not bins (1 "
                f"to {BIN_COUNT}, or {BIN_STEP} to {BIN_STEP * BIN_COUNT}). Check `label_speeds`"
            )
        low, high = values[[0, -1]] * MPH_PER_UNIT[self.unit]
        shown = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        return (
            f"holds {shown} mph as `label_speeds` {self.unit}; speeds are 0 to {MAX_MPH:g}: check "
            "the unit"
        )


@dataclass(frozen=True, slots=True)
class ClassRaster(Classes):
    """The rule of rasters of classes."""

    tolerance: int = 0  # largest difference per band from a value or colour of a class
    nodata: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        Classes.__post_init__(self)
        if self.nodata == NONE and self.names[0] != BACKGROUND_NAME:
            raise UsageError(
                "label_nodata", f"none needs the class {BACKGROUND_NAME}, as the first"
            )
        if not 0 <= self.tolerance < _MOST_BYTE:
            raise UsageError("tolerance", f"{self.tolerance}: expected 0 to {_MOST_BYTE - 1}")

    def require_others(self) -> None:
        """Raise UsageError if rasters hold one class and nothing else: all would be right."""
        valued = [name for name, values in zip(self.names, self.values, strict=True) if values]
        if len(valued) == 1 and self.rest[0] == NODATA and self.other != REFUSE:
            raise UsageError(
                "other",
                f"{self.other} leaves no labelled pixels but those of {valued[0]}: leave "
                f"`other` out, and all other values are {BACKGROUND_NAME}",
            )

    def label_bytes(
        self, pixels: MaskPixels, used: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, int]]:
        """Return the number of the class of every pixel, uint8 (y, x), and remarks -> pixels.

        Nodata tags do not count for a value that a class has. Raises UnlistedError if the classes
        refuse the value of a pixel that is ``used``, bool (y, x).
        """
        pixels.require_bands((1, CHANNELS), "a label has one, or red, green and blue")
        table = ValueTable(
            self.names, self.values, "classes", self.tolerance, (BACKGROUND_NAME, self.other)
        )
        codes = table.numbers(pixels)
        if self.nodata in ((), NONE):
            codes[pixels.has(pixels.tags) & (codes == UNLISTED)] = _blank(self.nodata)
        codes[pixels.unlabelled(self.nodata)] = _blank(self.nodata)
        unlisted = codes == UNLISTED
        if not unlisted.any():
            return codes, {}
        if self.other == REFUSE:
            refused = unlisted if used is None else unlisted & used
            if refused.any():
                texts, counts = _most_frequent(pixels, refused, _MOST_COUNTED)
                raise unlisted_error(pixels.name, self, dict(zip(texts, counts, strict=False)))
            codes[unlisted] = NODATA
            return codes, {}
        texts, counts = _most_frequent(pixels, unlisted, _MOST_SHOWN)
        codes[unlisted], what = self.rest
        if len(counts) > _MOST_SHOWN:
            texts, counts[_MOST_SHOWN:] = [*texts, "(others)"], [sum(counts[_MOST_SHOWN:])]
        remarks = {f"label value {t} read as {what}": n for t, n in zip(texts, counts, strict=True)}
        return codes, remarks


def _blank(nodata: tuple[str, ...]) -> int:
    """Return the label byte of pixels without a label."""
    return BACKGROUND if nodata == NONE else NODATA


RasterRule = RoadMask | SpeedRaster | ClassRaster


@lru_cache(maxsize=64)
def make_mask_rule(
    values: str | None, speeds: str | None, nodata: str | None
) -> RoadMask | SpeedRaster:
    """Return the rule of rasters of roads, from text such as ``>127`` or from a unit of speeds.

    Examples
    --------
    >>> make_mask_rule("1,2,5", None, "255")
    RoadMask(values=('1', '2', '5'), nodata=('255',))
    """
    blank = parse_values(nodata, "label_nodata")
    if values is None and speeds is not None:
        return SpeedRaster(speeds, blank)
    return RoadMask(parse_values(values, "label_values"), blank)


@lru_cache(maxsize=64)
def make_class_rule(
    text: str,
    *,
    other: str = REFUSE,
    tolerance: int = 0,
    nodata: str | None = None,
    field: str | None = None,
) -> ClassRaster:
    """Return the rule of classes given as text that `parse_classes` reads."""
    classes = parse_classes(text)
    first = classes[0]
    rest = first["name"] == BACKGROUND_NAME and not first["values"]  # of all values but one class's
    if other == REFUSE and len(classes) == 2 and rest:
        other = BACKGROUND_NAME
    return ClassRaster(
        tuple(each["name"] for each in classes),
        tuple(tuple(each["values"]) for each in classes),
        tuple(each["color"] for each in classes),
        other,
        field,
        tolerance,
        parse_values(nodata, "label_nodata"),
    )


class UnlistedError(LabelError):
    """Values of a raster that no class has; ``pixels`` counts them by their text."""

    pixels: dict[str, int]


def unlisted_error(label: str, rule: ClassRaster, pixels: Mapping[str, int]) -> UnlistedError:
    """Return the error of a label with these values, which lists the most frequent ones."""
    few = rule.tolerance or len(pixels) <= _MOST_SHOWN
    jpeg = "" if few else "; `tolerance` takes values that JPEG has changed"
    error = UnlistedError(f"{label}: has values {refused_values(pixels, 'pixel')}{jpeg}")
    error.pixels = dict(pixels)
    return error


def _most_frequent(
    pixels: MaskPixels, where: NDArray[np.bool_], count: int
) -> tuple[list[str], list[int]]:
    """Return the most frequent values as text, and the number of pixels of all values."""
    values, counts = np.unique(pixels.values[:, where], axis=1, return_counts=True)
    most = np.argsort(-counts, kind="stable")
    texts = []
    for bands in values[:, most[:count]].T.tolist():
        text = ",".join(f"{part:g}" for part in bands)
        if pixels.palette is not None:
            text += f" (#{bytes(pixels.palette[int(bands[0])].tolist()).hex().upper()})"
        texts.append(text)
    return texts, counts[most].tolist()


def _bin_bytes(pixels: MaskPixels) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return the central speed of every pixel's bin, and where values are no bins.

    There is one band, or one per bin and perhaps one of any road.
    """
    known = (1, BIN_COUNT, BIN_COUNT + 1)
    pixels.require_bands(known, "a mask of bins has one, or one per bin")
    values = pixels.values
    if len(values) > 1:
        codes = np.zeros(values.shape[1:], np.uint8)
        if len(values) > BIN_COUNT:
            codes[values[BIN_COUNT] > 0] = UNKNOWN_SPEED
        for byte, band in zip(_BIN_BYTES[1:], values, strict=False):
            codes[band > 0] = byte
        return codes, np.zeros(codes.shape, np.bool_)
    entries = tuple(
        (byte, (float(number * step),), (float(number * step),))
        for step in (1, BIN_STEP)
        for number, byte in enumerate(_BIN_BYTES)
    )
    codes = numbers_of_band(entries, 0, values[0])
    return codes, codes == UNLISTED
