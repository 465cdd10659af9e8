"""Convert the values of masks of any dtype to label bytes, by a rule."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import LabelError, UsageError
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

_COLOUR_BANDS: Final = 3
_COMPARISON: Final = re.compile(r"(>=|<=|>|<)\s*(-?\d+(?:\.\d+)?)")
_COMPARE: Final[dict[str, Any]] = {
    ">": np.greater,
    ">=": np.greater_equal,
    "<": np.less,
    "<=": np.less_equal,
}

Colour = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class MaskPixels:
    """Decoded pixels of a window of a mask.

    Attributes
    ----------
    values
        (band, y, x), real numbers, without alpha.
    opaque
        bool (y, x) from the alpha band; None without one.
    palette
        uint8 (256, 3), colour of each value of the only band; None without one.
    tag
        Nodata tag of the file, or None.
    name
        Name of the file, for messages.
    """

    values: NDArray[Any]
    opaque: NDArray[np.bool_] | None
    palette: NDArray[np.uint8] | None
    tag: float | None
    name: str


@dataclass(frozen=True, slots=True)
class _Condition:
    """A condition on pixels: one of some colours, one of some numbers, or a comparison."""

    colours: tuple[Colour, ...] = ()
    numbers: Colour = ()
    sign: str = ""

    def of(self, pixels: MaskPixels) -> NDArray[np.bool_]:
        """Return where pixels meet the condition, bool (y, x).

        Three numbers are a colour if the mask has three bands, or a palette with that colour. A
        single number must be met by every band.
        """
        bands = len(pixels.values)
        colours = self.colours
        if len(self.numbers) == _COLOUR_BANDS and (
            bands == _COLOUR_BANDS or _holds(pixels.palette, self.numbers)
        ):
            colours = (self.numbers,)
        if colours:
            return _coloured(pixels, colours)
        if pixels.values.dtype == np.uint8:
            hit = self._hit(np.arange(256))
            found: NDArray[np.bool_] = hit[pixels.values].all(axis=0)
            return found
        return np.asarray(self._hit(pixels.values).all(axis=0), np.bool_)

    def _hit(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        if self.sign:
            return np.asarray(_COMPARE[self.sign](values, self.numbers[0]), np.bool_)
        return np.isin(values, self.numbers)


@dataclass(frozen=True, slots=True)
class MaskRule:
    """Meaning of the values of masks.

    Attributes
    ----------
    values
        Values of road: ``255``, ``>127``, ``1,2,5``, ``#ff0000`` or ``255,0,0``; all others are
        background.
    speeds
        Unit of masks whose values are speeds: ``mph``, ``kmh`` or ``bins``; 0 is background. Used
        if ``values`` is None.
    nodata
        Values without a label, written like ``values``. None: the nodata tag of the file, unless
        that is 0, which many programs write for background.
    """

    values: str | None = None
    speeds: str | None = None
    nodata: str | None = None

    def check(self) -> None:
        """Raise UsageError if a text cannot be parsed."""
        for option, text in (("label_values", self.values), ("label_nodata", self.nodata)):
            if text is not None:
                _parsed(text, option)

    def codes(self, pixels: MaskPixels) -> NDArray[np.uint8]:
        """Return the label bytes of a mask, uint8 (y, x).

        Raises
        ------
        LabelError
            If it has too many bands, or values that are not speeds.
        """
        unknown = self.unknown(pixels)
        if self.values is None:
            codes = _speed_codes(pixels, self.speeds or "mph", ~unknown)
        else:
            _require_bands(pixels, (1, _COLOUR_BANDS), "a mask has one, or red, green and blue")
            road = _parsed(self.values, "label_values").of(pixels)
            if self.nodata is None and pixels.opaque is None:
                unknown &= ~road  # the rule for roads outranks the nodata tag
            codes = np.where(road, np.uint8(UNKNOWN_SPEED), np.uint8(BACKGROUND))
        codes[unknown] = NODATA
        return codes

    def unknown(self, pixels: MaskPixels) -> NDArray[np.bool_]:
        """Return where a mask has no label, bool (y, x)."""
        values, shape = pixels.values, pixels.values.shape[1:]
        unknown = np.zeros(shape, np.bool_) if pixels.opaque is None else ~pixels.opaque
        if np.issubdtype(values.dtype, np.floating):
            unknown |= np.isnan(values).any(axis=0)
        if self.nodata is not None:
            unknown |= _parsed(self.nodata, "label_nodata").of(pixels)
        elif pixels.tag:  # 0 is background
            unknown |= (values == pixels.tag).all(axis=0)
        if self.speeds is not None and values.dtype == np.uint8 and len(values) == 1:
            unknown |= values[0] == NODATA
        return unknown


@lru_cache(maxsize=64)
def _parsed(text: str, option: str) -> _Condition:
    """Return the condition that a text describes, or raise UsageError."""
    plain = text.strip()
    if comparison := _COMPARISON.fullmatch(plain):
        return _Condition(numbers=(float(comparison[2]),), sign=comparison[1])
    parts = [part.strip() for part in plain.split(",")]
    if all(re.fullmatch(r"#[0-9a-fA-F]{6}", part) for part in parts):
        colours = (tuple(float(byte) for byte in bytes.fromhex(part[1:])) for part in parts)
        return _Condition(colours=tuple(colours))
    try:
        return _Condition(numbers=tuple(float(part) for part in parts))
    except ValueError as error:
        raise UsageError(
            f"`{option}` {text}: write a value such as 255, a comparison such as '>127', several "
            "values such as 1,2,5, or a colour such as '#ff0000' or 255,0,0"
        ) from error


def _holds(palette: NDArray[np.uint8] | None, colour: Colour) -> bool:
    return palette is not None and bool((palette == colour).all(axis=1).any())


def _coloured(pixels: MaskPixels, colours: tuple[Colour, ...]) -> NDArray[np.bool_]:
    """Return where pixels have one of some colours; one band stands for shades of grey."""
    found = np.zeros(pixels.values.shape[1:], np.bool_)
    for colour in colours:
        if pixels.palette is not None:
            found |= (pixels.palette == colour).all(axis=1)[pixels.values[0]]
        elif len(pixels.values) == _COLOUR_BANDS or len(set(colour)) == 1:
            bands = zip(pixels.values, colour, strict=False)
            found |= np.logical_and.reduce([band == part for band, part in bands])
        else:
            raise LabelError(
                f"{pixels.name}: has one band and no palette, so no colour {colour}: give "
                "a value as `label_values`"
            )
    return found


def _require_bands(pixels: MaskPixels, known: tuple[int, ...], what: str) -> None:
    if len(pixels.values) not in known:
        raise LabelError(
            f"{pixels.name}: has {len(pixels.values)} bands; {what}. Extract one with "
            "gdal_translate -b N IN OUT"
        )


def _speed_codes(
    pixels: MaskPixels, unit: str, known: NDArray[np.bool_]
) -> NDArray[np.uint8]:  # fmt: skip
    """Return the label bytes of speeds; where `known` is False they are arbitrary."""
    if unit == "bins":
        return _bin_codes(pixels, known)
    _require_bands(pixels, (1,), "a mask of speeds has one")
    values = pixels.values[0]
    # In uint8 mph, as `geoprep export` writes it, 254 means unknown speed as in a store.
    unknown = (values == UNKNOWN_SPEED) & (unit == "mph" and values.dtype == np.uint8)
    mph = np.where(known & ~unknown, values, 0) * MPH_PER_UNIT[unit]
    if mph.size and not (mph.min() >= 0 and mph.max() <= MAX_MPH):
        raise LabelError(
            f"{pixels.name}: holds {mph.min():g} to {mph.max():g} mph as `label_speeds` {unit}; "
            f"speeds are 0 to {MAX_MPH:g}: check the unit, and give values without a label as "
            "`label_nodata`"
        )
    codes: NDArray[np.uint8] = np.where(mph > 0, to_byte(mph), np.uint8(BACKGROUND))
    codes[unknown] = UNKNOWN_SPEED
    return codes


def _bin_mph() -> NDArray[np.uint8]:
    """Return the label bytes of bins 0 (background) to 7, their central speeds: 6, 16, ... 66."""
    middle = to_byte((np.arange(BIN_COUNT) + 0.5) * BIN_WIDTH_MPH + 0.5)
    return np.append(np.uint8(BACKGROUND), middle)


def _bin_codes(pixels: MaskPixels, known: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return the central speed of every pixel's bin, from one band or one band per bin."""
    _require_bands(pixels, (1, BIN_COUNT, BIN_COUNT + 1), "a mask of bins has one, or one per bin")
    mph = _bin_mph()
    if len(pixels.values) > 1:
        codes = np.zeros(pixels.values.shape[1:], np.uint8)
        if len(pixels.values) > BIN_COUNT:  # any road
            codes[pixels.values[BIN_COUNT] > 0] = UNKNOWN_SPEED
        for number, band in enumerate(pixels.values[:BIN_COUNT], 1):
            codes[band > 0] = mph[number]
        return codes
    values = np.where(known, pixels.values[0], 0)
    small = np.isin(values, np.arange(BIN_COUNT + 1))
    grey = np.isin(values, np.arange(BIN_COUNT + 1) * BIN_STEP)
    if not (small | grey).all():
        strange = np.unique(values[~(small | grey)])[:5].tolist()
        raise LabelError(
            f"{pixels.name}: holds {', '.join(f'{value:g}' for value in strange)}, which are not "
            f"bins (1 to {BIN_COUNT}, or {BIN_STEP} to {BIN_STEP * BIN_COUNT}). Check "
            "`label_speeds`, and give values without a label as `label_nodata`"
        )
    numbers = np.where(small, values, values // BIN_STEP).astype(np.intp)
    return mph[numbers]
