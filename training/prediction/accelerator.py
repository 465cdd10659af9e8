"""Batches on an accelerator: pinned copies and the model in one stream, ahead of the host."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IN_FLIGHT = 2
"""Batches that are queued while the host blends and writes another one."""

Output = tuple[NDArray[np.float32], float]
"""Probabilities, float32 (n, y, x, channel), and the seconds that they took."""

Start = Callable[[NDArray[np.uint8]], Callable[[], Output]]
"""Starts the work on windows, uint8 (n, y, x, band); returns what waits for the output."""


def has_streams(device: torch.device) -> bool:
    """Return whether work on a device can be queued, such as on a GPU."""
    return device.type in ("cuda", "xpu")


def queued_on(device: torch.device, forward: Callable[[Tensor], Tensor]) -> Start:
    """Return a function that queues batches on a device, so that the host never waits to start one.

    ``forward`` is the model: uint8 (n, band, y, x) on the device -> fp32 (n, y, x, channel).
    """
    module = torch.get_device_module(device)
    stream = module.Stream(device)
    stream.wait_stream(module.current_stream(device))  # the weights are copied there

    def start(image: NDArray[np.uint8]) -> Callable[[], Output]:
        began, ended, copied = (module.Event(enable_timing=True) for _ in range(3))
        staged = torch.empty(image.shape, dtype=torch.uint8, pin_memory=True)
        staged.numpy()[...] = image
        with module.stream(stream):
            moved = staged.to(device, non_blocking=True).permute(0, 3, 1, 2)
            began.record(stream)
            found = forward(moved)
            ended.record(stream)
            host = torch.empty(found.shape, pin_memory=True)
            host.copy_(found, non_blocking=True)
            copied.record(stream)

        def wait() -> Output:
            copied.synchronize()
            return host.numpy(), began.elapsed_time(ended) / 1000

        return wait

    return start
