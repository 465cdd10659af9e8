"""Limits of rescaling, as the model and the options state them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from geoprep import imagery
from geoprep.build import parse_rescale
from geoprep.errors import ImageError
from training.checkpoint import ModelInfo


def known_limits(
    info: ModelInfo,
    rule: str,
    dtype: str = "",
    units: Sequence[tuple[float, float]] = (),
    name: str = "",
) -> NDArray[np.float64] | None:
    """Return float64 (band, 2), the values that become black and white; None: the image's own.

    ``units`` are scale and offset of the bands of an image of a ``dtype``, if it has any. Raises
    ImageError if the limits of the model belong to values of another kind.
    """
    fixed = parse_rescale(rescale_rule(info, rule))
    own = rescale_rule(info, rule) == info.rescale
    kind = imagery.value_kind(dtype, scaled=bool(units))
    if own and info.limits_of == "integers":
        units, kind = (), imagery.value_kind(dtype, scaled=False)
    if own and dtype and info.limits_of not in ("", kind) and (fixed is not None or info.limits):
        belong = "integers of more than 8 bits" if info.limits_of == "integers" else "a unit"
        raise ImageError(
            f"{name} is {dtype}, and the limits of the model belong to {belong}: use `rescale` "
            "scene, or LO,HI for these values"
        )
    if fixed == (0, 255) or (own and not info.limits_of):  # of values as they are stored
        units = ()
    limits = fixed or (info.limits if rescale_rule(info, rule) == "city" else ())
    return imagery.source_limits(limits, len(info.bands), units) if limits else None


def rescale_rule(info: ModelInfo, rule: str) -> str:
    """Return the rule of rescaling, which may be that of the model."""
    return info.rescale if rule == "checkpoint" else rule


def limits_note(info: ModelInfo, rule: str) -> str:
    """Return a line for the user if limits of a city are not known; else an empty one."""
    if rescale_rule(info, rule) != "city" or info.limits:
        return ""
    return (
        "rescaling: the model was trained on several cities with different limits, so each image's "
        "own limits are used (`rescale` LO,HI sets others)"
    )
