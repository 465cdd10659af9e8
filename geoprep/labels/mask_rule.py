"""What the values of a mask mean: a rule and pixels of any dtype in, bytes of a speed mask out."""

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
    """A window of a mask as its file has it.

    Attributes
    ----------
    values
        (band, y, x), real numbers; alpha left out.
    opaque
        bool (y, x) from the alpha band; None where there is none.
    palette
        uint8 (256, 3), colour of each value of the one band; None where there is none.
    tag
        The value that the file says is nodata, or None.
    name
        What messages call the file.
    """

    values: NDArray[Any]
    opaque: NDArray[np.bool_] | None
    palette: NDArray[np.uint8] | None
    tag: float | None
    name: str


@dataclass(frozen=True, slots=True)
class _Test:
    """What a text asks of pixels: one of some colours, one of some numbers, or a comparison."""

    colours: tuple[Colour, ...] = ()
    numbers: Colour = ()
    sign: str = ""

    def of(self, pixels: MaskPixels) -> NDArray[np.bool_]:
        """Return where pixels are as asked, bool (y, x).

        Three numbers are a colour where a mask has colours; a palette must hold it. One number is
        asked of every band.
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
    """How masks are read.

    Attributes
    ----------
    values
        What is road: ``255``, ``>127``, ``1,2,5``, ``#ff0000`` or ``255,0,0``; the rest is none.
    speeds
        ``mph``, ``kmh`` or ``bins`` instead, where values are speeds; 0 is no road.
    nodata
        What is unknown, written likewise; None: the file's nodata tag, unless that is 0, which
        programs that draw masks write as the ground beside the roads.
    """

    values: str | None = None
    speeds: str | None = None
    nodata: str | None = None

    def check(self) -> None:
        """Raise UsageError where a text cannot be read."""
        for option, text in (("--label-values", self.values), ("--label-nodata", self.nodata)):
            if text is not None:
                _parsed(text, option)

    def codes(self, pixels: MaskPixels) -> NDArray[np.uint8]:
        """Return the speed mask that a mask stands for, uint8 (y, x).

        Raises
        ------
        LabelError
            It has too many bands, or values that are no speeds.
        """
        unknown = self._unknown(pixels)
        if self.values is None:
            codes = _speed_codes(pixels, self.speeds or "mph", ~unknown)
        else:
            _require_bands(pixels, (1, _COLOUR_BANDS), "a mask has one band, or red, green, blue")
            road = _parsed(self.values, "--label-values").of(pixels)
            if self.nodata is None and pixels.opaque is None:
                unknown &= ~road  # what is called road is one, whatever the file's tag
            codes = np.where(road, np.uint8(UNKNOWN_SPEED), np.uint8(BACKGROUND))
        codes[unknown] = NODATA
        return codes

    def _unknown(self, pixels: MaskPixels) -> NDArray[np.bool_]:
        """Return where a mask says nothing, bool (y, x)."""
        values, shape = pixels.values, pixels.values.shape[1:]
        unknown = np.zeros(shape, np.bool_) if pixels.opaque is None else ~pixels.opaque
        if np.issubdtype(values.dtype, np.floating):
            unknown |= np.isnan(values).any(axis=0)
        if self.nodata is not None:
            unknown |= _parsed(self.nodata, "--label-nodata").of(pixels)
        elif pixels.tag:  # 0 is no road
            unknown |= (values == pixels.tag).all(axis=0)
        if self.speeds is not None and values.dtype == np.uint8 and len(values) == 1:
            unknown |= values[0] == NODATA
        return unknown


@lru_cache(maxsize=64)
def _parsed(text: str, option: str) -> _Test:
    """Return what a text asks for, or raise UsageError."""
    plain = text.strip()
    if comparison := _COMPARISON.fullmatch(plain):
        return _Test(numbers=(float(comparison[2]),), sign=comparison[1])
    parts = [part.strip() for part in plain.split(",")]
    if all(re.fullmatch(r"#[0-9a-fA-F]{6}", part) for part in parts):
        colours = (tuple(float(byte) for byte in bytes.fromhex(part[1:])) for part in parts)
        return _Test(colours=tuple(colours))
    try:
        return _Test(numbers=tuple(float(part) for part in parts))
    except ValueError as error:
        raise UsageError(
            f"{option} {text}: write a value such as 255, a comparison such as '>127', several "
            "values such as 1,2,5, or a colour such as '#ff0000' or 255,0,0"
        ) from error


def _holds(palette: NDArray[np.uint8] | None, colour: Colour) -> bool:
    return palette is not None and bool((palette == colour).all(axis=1).any())


def _coloured(pixels: MaskPixels, colours: tuple[Colour, ...]) -> NDArray[np.bool_]:
    """Return where pixels have one of some colours; a grey mask has those whose parts are equal."""
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
                "--label-values a value"
            )
    return found


def _require_bands(pixels: MaskPixels, known: tuple[int, ...], what: str) -> None:
    if len(pixels.values) not in known:
        raise LabelError(
            f"{pixels.name}: has {len(pixels.values)} bands; {what}. Take one out with "
            "gdal_translate -b N IN OUT"
        )


def _speed_codes(
    pixels: MaskPixels, unit: str, known: NDArray[np.bool_]
) -> NDArray[np.uint8]:  # fmt: skip
    """Return the bytes of speeds; those that are not known are whatever they are."""
    if unit == "bins":
        return _bin_codes(pixels, known)
    _require_bands(pixels, (1,), "speeds are in one")
    values = pixels.values[0]
    # In bytes of mph, which `geoprep export` writes, 254 has the store's own meaning.
    unknown = (values == UNKNOWN_SPEED) & (unit == "mph" and values.dtype == np.uint8)
    mph = np.where(known & ~unknown, values, 0) * MPH_PER_UNIT[unit]
    if mph.size and not (mph.min() >= 0 and mph.max() <= MAX_MPH):
        raise LabelError(
            f"{pixels.name}: holds {mph.min():g} to {mph.max():g} mph as --label-speeds {unit}; "
            f"speeds are 0 to {MAX_MPH:g}: check the unit, and say with --label-nodata what is "
            "unknown"
        )
    codes: NDArray[np.uint8] = np.where(mph > 0, to_byte(mph), np.uint8(BACKGROUND))
    codes[unknown] = UNKNOWN_SPEED
    return codes


def _bin_mph() -> NDArray[np.uint8]:
    """Return the middle of the bins 0 (no road) to 7 as bytes: 6, 16, ... 66 mph."""
    middle = to_byte((np.arange(BIN_COUNT) + 0.5) * BIN_WIDTH_MPH + 0.5)
    return np.append(np.uint8(BACKGROUND), middle)


def _bin_codes(pixels: MaskPixels, known: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return the middle of every pixel's bin: of one band, or of the band that is not 0."""
    _require_bands(pixels, (1, BIN_COUNT, BIN_COUNT + 1), "bins are in one, or one in each of 7")
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
            f"{pixels.name}: holds {', '.join(f'{value:g}' for value in strange)}, no bins: those "
            f"are 1 to {BIN_COUNT}, or {BIN_STEP} to {BIN_STEP * BIN_COUNT}. Check --label-speeds, "
            "and say with --label-nodata what is unknown"
        )
    numbers = np.where(small, values, values // BIN_STEP).astype(np.intp)
    return mph[numbers]
