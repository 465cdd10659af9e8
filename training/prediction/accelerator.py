"""Windows on an accelerator: copies, the model and blending in streams, so that none waits.

The host reads images and writes files. Everything between is queued: a batch is copied from pinned
memory, goes through the model and is blended while others are under way; finished rows come back as
bytes. The arithmetic is that of `training.prediction.blend`, in the same order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geoprep.compiled import compiled
from geoprep.speed import MAX_MPH, NODATA
from training.checkpoint import ModelInfo
from training.prediction.blend import Part, RowBlender
from training.prediction.window_rows import WindowRow
from training.prediction.windows import WindowGrid

IN_FLIGHT = 3
"""Batches that are copied or computed at a time, each in its own stream."""

_ROWS_IN_FLIGHT = 2
"""Rows of windows whose bytes are copied back or written at a time."""


class HasImage(Protocol):
    """A batch of windows."""

    @property
    def image(self) -> NDArray[np.uint8]:
        """Return the windows, uint8 (n, y, x, band)."""
        ...


B = TypeVar("B", bound=HasImage)

Stream: TypeAlias = Any
"""A stream of torch, which has a class for every kind of device."""

Event: TypeAlias = Any
"""An event of torch, likewise."""

_NOTHING = torch.empty(0)


class DeviceStreams:
    """Streams, events and pinned memory of a device.

    Parameters
    ----------
    device
        The device.
    module
        Its module of torch, such as `torch.cuda`.
    """

    def __init__(self, device: torch.device, module: Any) -> None:  # noqa: ANN401 - a module
        self.device, self._module = device, module

    def stream(self) -> Stream:
        """Return a new stream, which begins after the work of the current one."""
        made = self._module.Stream(self.device)
        made.wait_stream(self._module.current_stream(self.device))
        return made

    def event(self) -> Event:
        """Return a new event, which notes its time."""
        return self._module.Event(enable_timing=True)

    def using(self, stream: Stream) -> AbstractContextManager[object]:
        """Return a context whose operators are queued in a stream."""
        context: AbstractContextManager[object] = self._module.stream(stream)
        return context

    def pinned(self, *shape: int) -> Tensor:
        """Return pinned memory, uint8; torch reuses it once all copies from and to it are done."""
        return torch.empty(shape, dtype=torch.uint8, pin_memory=True)

    def keep(self, values: Tensor, stream: Stream) -> None:
        """Keep the memory of a tensor of another stream until a stream is done with it."""
        values.record_stream(stream)


def device_streams(device: torch.device) -> DeviceStreams | None:
    """Return the streams of a device; None if it has none, such as a CPU."""
    if device.type not in ("cuda", "xpu"):
        return None
    return DeviceStreams(device, torch.get_device_module(device))


class _Queue:
    """Batches in the model, `IN_FLIGHT` at a time."""

    def __init__(self, streams: DeviceStreams, took: Callable[[float], None]) -> None:
        self._streams, self._took = streams, took
        self._lanes = deque(streams.stream() for _ in range(IN_FLIGHT))
        self._running = deque[tuple[Event, Event]]()  # events: the model began, the model ended
        self._last: Event = None

    def put(
        self, image: NDArray[np.uint8], forward: Callable[[Tensor], Tensor], user: Stream
    ) -> Tensor:
        """Return the model's output, which the stream ``user`` may use."""
        if len(self._running) == IN_FLIGHT:
            self.wait()
        streams, lane = self._streams, self._lanes[0]
        self._lanes.rotate(-1)
        began, ended = streams.event(), streams.event()
        staged = streams.pinned(*image.shape)
        staged.numpy()[...] = image
        with streams.using(lane):
            copied = staged.to(streams.device, non_blocking=True).permute(0, 3, 1, 2)
            began.record(lane)
            found = forward(copied)
            ended.record(lane)
        self._running.append((began, ended))
        user.wait_event(ended)
        streams.keep(found, user)
        return found

    def wait(self) -> None:
        """Wait for the oldest batch; report the time since it began and the last one ended."""
        began, ended = self._running.popleft()
        ended.synchronize()
        elapsed = began.elapsed_time(ended)
        if self._last is not None:
            elapsed = min(elapsed, self._last.elapsed_time(ended))
        self._took(elapsed / 1000)
        self._last = ended

    def drain(self) -> None:
        """Wait for all batches."""
        while self._running:
            self.wait()


class DeviceBlender(RowBlender):
    """A `RowBlender` whose sums and bytes are on an accelerator.

    Parameters
    ----------
    streams
        Of the device.
    grid, info, threshold, threads, confidence, probabilities
        See `RowBlender`; the threads are not used.

    """

    def __init__(
        self,
        streams: DeviceStreams,
        grid: WindowGrid,
        info: ModelInfo,
        threshold: float,
        threads: int = 1,
        *,
        confidence: bool = False,
        probabilities: bool = False,
    ) -> None:
        self._streams, self._stream = streams, streams.stream()
        self._pending = deque[Future[None]]()
        with streams.using(self._stream):
            more = {"confidence": confidence, "probabilities": probabilities}
            super().__init__(grid, info, threshold, min(threads, 1), **more)
            self._down, self._across = map(self._moved, (self._down, self._across))
            speeds = [int(min(max(mph + 0.5, 1), MAX_MPH)) for mph in self._mph]
            self._speeds = self._moved(np.array(speeds, np.uint8))
        # The least float32 that is not below the threshold: not every device has float64.
        least = np.float32(threshold)
        self._least = float(
            np.nextafter(least, np.float32(2)) if float(least) < threshold else least
        )

    def outputs(
        self,
        batches: Iterable[B],
        forward: Callable[[Tensor], Tensor],
        took: Callable[[float], None],
    ) -> Generator[tuple[B, Tensor], None, None]:
        """Yield batches with the model's output, to be added.

        Parameters
        ----------
        batches
            The batches; those without windows have no output.
        forward
            The model: uint8 (n, band, y, x) on the device -> fp32 (n, y, x, channel).
        took
            Called with the seconds that the model took for each batch.
        """
        waiting = _Queue(self._streams, took)
        for batch in batches:
            full = len(batch.image) > 0
            yield batch, waiting.put(batch.image, forward, self._stream) if full else _NOTHING
        waiting.drain()

    def add(self, row: WindowRow, columns: Sequence[int], probabilities: Tensor) -> None:
        """See `RowBlender`; the probabilities are on the device."""
        with self._streams.using(self._stream):
            super().add(row, columns, probabilities)

    def deliver(
        self, row: WindowRow, skipped: int, put: Callable[[NDArray[np.uint8]], None]
    ) -> None:
        """See `RowBlender`; a thread waits for the bytes."""
        while len(self._pending) >= _ROWS_IN_FLIGHT:
            self._pending.popleft().result()
        copied = self._streams.event()
        with self._streams.using(self._stream):
            found = self.take(row)[:, skipped:].contiguous()
            host = self._streams.pinned(*found.shape)
            host.copy_(found, non_blocking=True)
            copied.record(self._stream)
        valid = row.valid[skipped : skipped + host.shape[1]]
        self._pending.append(self._pool.submit(self._put, copied, host, valid, put))

    def _put(
        self,
        copied: Event,
        host: Tensor,
        valid: NDArray[np.uint8],
        put: Callable[[NDArray[np.uint8]], None],
    ) -> None:
        copied.synchronize()
        found: NDArray[np.uint8] = host.numpy()
        self.lost += hide(found, valid)
        put(found)

    def finish(self) -> int:
        """See `RowBlender`."""
        while self._pending:
            self._pending.popleft().result()
        return super().finish()

    def _moved(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(self._streams.device)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, device=self._streams.device)

    def _blank(self, *shape: int) -> Tensor:
        return torch.full(shape, NODATA, dtype=torch.uint8, device=self._streams.device)

    def _share(self, count: int, work: Callable[[int, int], None]) -> None:
        work(0, count)

    def _fade(
        self,
        window: Tensor,
        part: Part,
        above: int,
        left: int,
        down: Tensor,
        across: Tensor,
        sums: Tensor,
    ) -> None:
        top, bottom, first, last = part
        weight = down[top:bottom, None] * across[first:last]
        into = sums[top - above : bottom - above, left + first : left + last]
        into += weight[..., None] * window[top:bottom, first:last]

    def _to_bytes(self, values: Tensor, part: Part, left: int, row: WindowRow) -> None:
        """Write bytes as `to_bytes` and `class_bytes`; 255 where a value is not finite."""
        top, bottom, first, last = part
        values = values[top:bottom, first:last]
        out = self._bytes[:, top:bottom, left + first : left + last]
        make = self._class_bytes if self._has_classes else self._road_bytes
        finite = values.sum(-1).isfinite()
        band = 0
        for made in make(values):
            count = len(made)
            out[band : band + count] = made.masked_fill(~finite, NODATA)
            band += count

    def _road_bytes(self, values: Tensor) -> list[Tensor]:
        """Return uint8 (band, y, x) of probabilities (y, x, channel), band by band."""
        scaled = _scaled(values).permute(2, 0, 1)
        classes = len(self._speeds)
        if not classes:
            return [scaled[-1:], scaled[:-1]]
        speed = self._speeds[values[..., :classes].argmax(-1)]
        speed = speed.masked_fill(values[..., -1] < self._least, 0)
        return [scaled[-1:], speed[None], scaled[:-1]]

    def _class_bytes(self, values: Tensor) -> list[Tensor]:
        confidence, probabilities = self._extra
        found = [values.argmax(-1).to(torch.uint8)[None]]
        if confidence:
            best, second = values.topk(2, dim=-1).values.unbind(-1)
            found.append(_scaled(best - second.clamp(min=0))[None])
        if probabilities:
            found.append(_scaled(values).permute(2, 0, 1))
        return found


def _scaled(values: Tensor) -> Tensor:
    """Return probabilities times 255, rounded half up, 0 to 254."""
    return values.mul(255).add_(0.5).clamp_(0, 254).to(torch.uint8)


@compiled
def hide(out: NDArray[np.uint8], valid: NDArray[np.uint8]) -> int:
    """Write nodata where there is no imagery; return how many other pixels are nodata already.

    Parameters
    ----------
    out
        uint8 (band, y, x), the bytes of a prediction; 255 in all bands where the output of the
        model is not finite.
    valid
        uint8 (y, x), 0 where there is no imagery.
    """
    lost = 0
    for y in range(out.shape[1]):
        for x in range(out.shape[2]):
            if valid[y, x] == 0:
                for k in range(out.shape[0]):
                    out[k, y, x] = 255
            elif out[0, y, x] == 255:
                lost += 1
    return lost
