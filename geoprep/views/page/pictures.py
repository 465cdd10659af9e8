"""Encode a scene for a browser: the image as JPEG, the label as PNG."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray

from geoprep.palette import NODATA_GREYS
from geoprep.speed import BACKGROUND, NODATA, UNKNOWN_SPEED
from geoprep.store.reader import StoreReader
from geoprep.store.scenes import scene_grid
from geoprep.views.display import (
    display_rgb,
    hatch,
    label_colours,
    north_up,
    read_thinned,
    stripes,
    thinned_classes,
    thinned_image,
    thinned_speed,
)

THUMB_SIDE = 256
"""Length of the longer side of a thumbnail in pixels, approximately."""
QUALITY = {"image": 85, "thumb": 72}
_STRIPE = UNKNOWN_SPEED - 1


def scene_pictures(
    store: StoreReader, scene: int, level: int, step: int, brighten: NDArray[np.uint8]
) -> dict[str, bytes]:
    """Return image and mask of a scene, reduced by ``step``, north up, and their thumbnails."""
    image, label = read_thinned(store, scene, level, step)
    flips = north_up(scene_grid(store, scene))
    image, label = image[flips], label[flips]
    nodata = (image == 0).all(axis=2)
    rgb = display_rgb(store, image, brighten)
    small = min(max(1, round(max(label.shape) / THUMB_SIDE)), *label.shape)
    empty = thinned_image(np.uint8(255) * ~nodata[..., None], small)[..., 0] == 0
    colours, clear = label_colours(store), store.meta.has_background
    reduce = thinned_classes if store.meta.has_classes else thinned_speed
    return {
        "image": _jpeg(rgb, nodata, QUALITY["image"]),
        "mask": _png(label, colours, clear=clear),
        "thumb": _jpeg(thinned_image(rgb, small), empty, QUALITY["thumb"]),
        "roads": _png(reduce(label, small), colours, clear=clear),
    }


def _jpeg(rgb: NDArray[np.uint8], nodata: NDArray[np.bool_], quality: int) -> bytes:
    from PIL import Image  # comes with matplotlib

    if nodata.any():
        rgb = np.where(nodata[..., None], hatch(rgb.shape), rgb)
    out = io.BytesIO()
    picture = Image.fromarray(np.ascontiguousarray(rgb))
    picture.save(out, "JPEG", quality=quality, optimize=True)
    return out.getvalue()


def _png(label: NDArray[np.uint8], colours: NDArray[np.uint8], *, clear: bool) -> bytes:
    """Return a label as PNG; ``clear``: value 0, the background, is transparent."""
    # 253 is the second stripe colour.
    from PIL import Image

    indices = np.where(label == _STRIPE, np.uint8(_STRIPE - 1), label)
    indices[(label == NODATA) & (stripes(label.shape) == 0)] = _STRIPE
    colours = colours.copy()
    colours[_STRIPE] = NODATA_GREYS[0]
    picture = Image.fromarray(indices).convert("P")
    picture.putpalette(colours.tobytes())
    out = io.BytesIO()
    seen = {"transparency": BACKGROUND} if clear else {}
    picture.save(out, "PNG", compress_level=6, **seen)
    return out.getvalue()
