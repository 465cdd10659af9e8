"""A device proves itself: its first window is compared with the same one computed on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from geoprep.errors import GeoprepError
from training.checkpoint import ModelInfo
from training.prediction.device import Device
from training.prediction.host import Host
from training.prediction.predict_options import PredictOptions
from training.prediction.prediction_tags import band_names
from training.prediction.window_rows import WindowRow, WindowRows
from training.prediction.windows import WindowGrid, window_grid
from training.runners.runner import PredictFunction

SIDE = 256
"""Side in pixels of the window that is compared."""
PROBABILITY, BYTES = 0.03, 0.01
"""Largest mean difference of probabilities, ten times that of bf16; and of the bands made of the
same probabilities, the largest share of bytes that differ by more than one."""

Place = Host | Device


class DeviceError(GeoprepError):
    """A device computes something else than the host."""


def check_device(
    reading: WindowRows,
    how: tuple[ModelInfo, PredictOptions, float, bool],
    on_device: PredictFunction,
    on_host: PredictFunction,
) -> bool:
    """Return whether a window was compared: the middle of an image may have no imagery.

    Parameters
    ----------
    reading
        The pixels of the prediction, on the device.
    how
        What `Host.to_bytes` takes.
    on_device
        The model on the device.
    on_host
        The same model on the host.

    Raises
    ------
    DeviceError
        Probabilities or bytes differ by more than rounding.
    """
    place, host = reading.place, Host()
    grid = window_grid(reading.source.height, reading.source.width, SIDE, 0, 1)
    number = len(grid.rows.starts) // 2
    (own,), (row,) = (
        reading.again(grid, where).read(number, number + 1) for where in (place, host)
    )
    if not row.full:
        return False
    column = row.full[len(row.full) // 2]
    place.receive(own)
    found = on_device(torch.as_tensor(place.windows(own, [column], grid, 1)))
    right = on_host(torch.from_numpy(host.windows(row, [column], grid, 1))).numpy()
    values = found.cpu().numpy()
    apart = np.abs(values - right)
    apart[np.isnan(values) & np.isnan(right)] = 0
    if not apart.mean() <= PROBABILITY:
        raise DeviceError(
            f"{found.device} computes probabilities that differ by {apart.mean():.2g} on average "
            "from those of the host"
        )
    given = found if isinstance(place, Device) else values
    bands, same = (
        _bands(where, of, grid, column, probabilities, how)
        for where, of, probabilities in ((place, own, given), (host, row, values))
    )
    share = (np.abs(bands - same) > 1).mean()
    if not share <= BYTES:
        raise DeviceError(f"{found.device} makes other bytes of {share:.0%} of the pixels")
    return True


def _bands(
    place: Place,
    row: WindowRow,
    grid: WindowGrid,
    column: int,
    probabilities: Any,  # noqa: ANN401 - an array or a tensor
    how: tuple[ModelInfo, PredictOptions, float, bool],
) -> NDArray[np.int16]:
    """Return the bands under a window, int16 (band, y, x), where it touches no other one."""
    info, options, _, spread = how
    bands = len(band_names(info, options, spread=spread))
    convert: Any = place.to_bytes(*how)
    with place.blender(grid, info.channels + spread, bands, convert) as blender:
        blender.add(row, [column], probabilities)
        whole = torch.as_tensor(blender.take(row)).short().cpu().numpy()
    # Elsewhere one of the two may count on a neighbour.
    down = grid.rows.weights[row.number][: whole.shape[1]] == 1
    part = whole[:, down, grid.columns.starts[column] :]
    return part[..., grid.columns.weights[column][: part.shape[2]] == 1]
