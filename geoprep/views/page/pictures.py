"""A scene as pictures for a browser: JPEG of what was seen, PNG of the speeds that lie over it."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geoprep.palette import NODATA_GREYS, speed_colours
from geoprep.speed import BACKGROUND, NODATA, UNKNOWN_SPEED
from geoprep.store import Store, scene_grid, scene_shape
from geoprep.views.pixels import (
    natural_bands,
    north_up,
    read_thinned,
    thinned_image,
    thinned_speed,
)

THUMB_SIDE = 256
"""Pixels of the longer side of a thumbnail, or a little more."""
MOST_SIDE = 4096
"""Pixels of the longer side of a picture; browsers refuse or crawl not far above."""
QUALITY = {"image": 85, "thumb": 72}
_STRIPE = UNKNOWN_SPEED - 1
STRIPES = 24
"""Stripes of the no-data hatch along the shorter side of a picture."""


@dataclass(frozen=True, slots=True)
class ScenePictures:
    """Encoded pictures of one scene, north up, by the name of their kind.

    ``image`` and ``thumb`` are JPEG, ``mask`` and ``roads`` (its thumbnail) are PNG with a palette
    whose "no road" is transparent.
    """

    image: bytes
    mask: bytes
    thumb: bytes
    roads: bytes


def shown_step(height: int, width: int) -> int:
    """Return how many pixels of a scene along one axis become one of its picture."""
    return -(-max(height, width) // MOST_SIDE)


def scene_pictures(
    store: Store, scene: int, level: int, brighten: NDArray[np.uint8]
) -> ScenePictures:
    """Read a scene that has pixels, and encode it at full and at thumbnail size.

    Parameters
    ----------
    brighten
        uint8 (256), how values are shown.

    Raises
    ------
    StoreError
        Its pixels are missing or damaged.
    """
    height, width = scene_shape(store, scene, level)
    step = min(shown_step(height, width), height, width)
    image, speed = read_thinned(store, scene, level, step)
    flips = north_up(scene_grid(store, scene))
    image, speed = image[flips], speed[flips]
    nodata = (image == 0).all(axis=2)
    rgb = brighten[image[..., list(natural_bands(store.meta.bands))]]
    rgb = np.broadcast_to(rgb, (*rgb.shape[:2], 3))
    small = min(max(1, round(max(speed.shape) / THUMB_SIDE)), *speed.shape)
    empty = thinned_image(np.uint8(255) * ~nodata[..., None], small)[..., 0] == 0
    return ScenePictures(
        image=_jpeg(rgb, nodata, QUALITY["image"]),
        mask=_png(speed),
        thumb=_jpeg(thinned_image(rgb, small), empty, QUALITY["thumb"]),
        roads=_png(thinned_speed(speed, small)),
    )


def stripes(shape: tuple[int, ...]) -> NDArray[np.intp]:
    """Return 0 or 1 (y, x): stripes at 45 degrees, as wide on a small picture as on a large one."""
    y, x = np.ogrid[: shape[0], : shape[1]]
    return (y + x) // max(2, min(shape[:2]) // STRIPES) % 2


def _jpeg(rgb: NDArray[np.uint8], nodata: NDArray[np.bool_], quality: int) -> bytes:
    from PIL import Image  # comes with matplotlib

    if nodata.any():
        hatch = np.array(NODATA_GREYS, np.uint8)[stripes(rgb.shape)]
        rgb = np.where(nodata[..., None], hatch, rgb)
    out = io.BytesIO()
    picture = Image.fromarray(np.ascontiguousarray(rgb))
    picture.save(out, "JPEG", quality=quality, optimize=True)
    return out.getvalue()


def _png(speed: NDArray[np.uint8]) -> bytes:
    """Return a mask of the store's bytes, but for 253 (one with 252), which is the other stripe."""
    from PIL import Image

    indices = np.where(speed == _STRIPE, np.uint8(_STRIPE - 1), speed)
    indices[(speed == NODATA) & (stripes(speed.shape) == 0)] = _STRIPE
    colours = speed_colours()
    colours[_STRIPE] = NODATA_GREYS[0]
    picture = Image.fromarray(indices).convert("P")
    picture.putpalette(colours.tobytes())
    out = io.BytesIO()
    picture.save(out, "PNG", transparency=BACKGROUND, compress_level=6)
    return out.getvalue()
