"""Look up the values, palettes and colours of raster labels in tables of classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import LabelError
from geoprep.labels.classes import NONE, UNLABELLED, as_colour, number_limits

UNLISTED: Final = 254
"""Number of pixels whose value no class has."""
CHANNELS: Final = 3

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

    def require_bands(self, known: tuple[int, ...], what: str) -> None:
        """Refuse a raster with another number of bands."""
        if len(self.values) not in known:
            raise LabelError(
                f"{self.name}: has {len(self.values)} bands; {what}. Extract one with "
                "gdal_translate -b N IN OUT"
            )

    def has(self, tags: Iterable[float]) -> NDArray[np.bool_]:
        """Return where all bands have one of some values, bool (y, x)."""
        has_tag = np.zeros(self.values.shape[1:], np.bool_)
        for tag in tags:
            has_tag |= (self.values == tag).all(axis=0)
        return has_tag

    def unlabelled(self, nodata: tuple[str, ...]) -> NDArray[np.bool_]:
        """Return where there is no label by alpha, NaN or given values, bool (y, x)."""
        blank = np.zeros(self.values.shape[1:], np.bool_)
        if self.opaque is not None:
            blank |= ~self.opaque
        if np.issubdtype(self.values.dtype, np.floating):
            blank |= np.isnan(self.values).any(axis=0)
        if nodata and nodata != NONE:
            given = ValueTable((UNLABELLED,), (nodata,), "label_nodata")
            blank |= given.numbers(self) != UNLISTED
        return blank

    def road_tags(self, nodata: tuple[str, ...]) -> tuple[set[float], dict[str, int]]:
        """Return the nodata tags that count in a raster of roads, and a remark.

        None counts beside given values, and none of 0: many programs write 0 for background.
        """
        tags = set() if nodata and nodata != NONE else set(self.tags)
        remarks = {"mask tagged nodata 0, read as no road": 1} if 0 in tags else {}
        return tags - {0}, remarks


@dataclass(frozen=True, slots=True)
class ValueTable:
    """The values that classes have in rasters, as they are written."""

    names: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]
    option: str  # parameter that gives the values, for messages
    tolerance: int = 0
    without_values: tuple[str, ...] = ()  # classes that need none

    def numbers(self, pixels: MaskPixels) -> NDArray[np.uint8]:
        """Return the number of the class of every pixel, `UNLISTED` where it has none."""
        values = pixels.values
        if pixels.palette is not None:
            codes: NDArray[np.uint8] = _palette_table(self, pixels.palette)[values[0]]
            return codes
        entries = self.entries(len(values))
        if len(values) == 1:
            return numbers_of_band(entries, self.tolerance, values[0])
        if values.dtype != np.uint8 or len(values) != CHANNELS:
            return _nearest(entries, self.tolerance, np.moveaxis(values, 0, -1))
        import pandas as pd  # takes long to import

        red, green, blue = values.astype(np.int32)
        which, colours = pd.factorize(((red << 16) | (green << 8) | blue).ravel())
        channels = np.column_stack([colours >> 16, colours >> 8 & 255, colours & 255])
        return _nearest(entries, self.tolerance, channels)[which].reshape(red.shape)

    def entries(
        self, bands: int, values: Iterable[tuple[int, str]] | None = None
    ) -> tuple[_Entry, ...]:
        """Return the values of classes, all if omitted, in a raster of one or three bands.

        Raises LabelError if two classes have the same.
        """
        owner: dict[tuple[tuple[float, ...], tuple[float, ...]], int] = {}
        for number, value in self.each() if values is None else values:
            colour = as_colour(self.values[number]) if bands == CHANNELS else None
            colour = colour or as_colour([value])
            limits = number_limits(value)
            if colour is not None and (bands == CHANNELS or len(set(colour)) == 1):
                low = high = tuple(map(float, colour[:bands]))
            elif limits is not None:
                low, high = ((limit,) * bands for limit in limits)
            else:
                what = "the colour" if colour else "the value"
                raster = "of colours" if bands == CHANNELS else "of one band without a palette"
                raise LabelError(
                    f"class {self.names[number]} has {what} {value}, but its label is a raster "
                    f"{raster}. Give a {'colour' if bands == CHANNELS else 'number'} in "
                    f"`{self.option}`"
                )
            if owner.setdefault((low, high), number) != number:
                raise LabelError(
                    f"classes {self.names[owner[low, high]]} and {self.names[number]} both have "
                    f"the value {','.join(f'{part:g}' for part in low)}. Give each value to one "
                    f"class in `{self.option}`"
                )
        return tuple((number, low, high) for (low, high), number in owner.items())

    def each(self) -> Iterator[tuple[int, str]]:
        """Yield the number of a class and a value of it, for all classes and values."""
        for number, (name, values) in enumerate(zip(self.names, self.values, strict=True)):
            if not values and name not in self.without_values:
                raise LabelError(
                    f"class {name} has no value in raster labels. Give it a value or a colour in "
                    f"`classes`, such as {name}=255"
                )
            for value in values:
                yield number, value

    def are_colours(self, palette: NDArray[np.uint8]) -> bool:
        """Return whether the values of all classes are colours.

        Outside of `classes`, three different numbers may be values as well as one colour: they are
        indices if the palette lacks that colour.
        """
        for values in self.values:
            colour = as_colour(values)
            if colour is None and not all(as_colour([value]) for value in values):
                return False
            ambiguous = self.option != "classes" and len(values) == len(set(values)) > 1
            if ambiguous and colour is not None and not (palette == colour).all(axis=1).any():
                return False
        return True


def numbers_of_band(
    entries: tuple[_Entry, ...], tolerance: int, values: NDArray[Any]
) -> NDArray[np.uint8]:
    """Return the class of every value of one band, `UNLISTED` where it has none."""
    if values.dtype not in (np.uint8, np.uint16):
        return _nearest(entries, tolerance, values[..., None])
    of_value = _nearest(entries, tolerance, np.arange(np.iinfo(values.dtype).max + 1)[:, None])
    codes: NDArray[np.uint8] = of_value[values]
    return codes


def _nearest(
    entries: tuple[_Entry, ...], tolerance: int, values: NDArray[Any]
) -> NDArray[np.uint8]:
    """Return the class of the entry nearest to each of (..., band), the first of several."""
    codes = np.full(values.shape[:-1], UNLISTED, np.uint8)
    nearest = np.full(codes.shape, np.inf)
    values = values.astype(np.float64)
    for number, low, high in entries:
        inside = (values >= low) & (values <= high)
        with np.errstate(invalid="ignore"):  # infinite values
            apart = np.where(inside, 0.0, np.abs(values - np.clip(values, low, high)))
        distance = (apart**2).sum(axis=-1)
        closer = (apart.max(axis=-1) <= tolerance) & (distance < nearest)
        codes[closer], nearest[closer] = number, distance[closer]
    return codes


def _palette_table(table: ValueTable, colours: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return uint8 (256,): the class of every index of a palette, uint8 (256, 3)."""
    if table.are_colours(colours):
        return _nearest(table.entries(CHANNELS), table.tolerance, colours)
    hexes = [(number, value) for number, value in table.each() if value.startswith("#")]
    indices = [(number, value) for number, value in table.each() if not value.startswith("#")]
    by_colour = _nearest(table.entries(CHANNELS, hexes), table.tolerance, colours)
    by_index = _nearest(table.entries(1, indices), 0, np.arange(256)[:, None])
    return np.where(by_index == UNLISTED, by_colour, by_index)
