"""The pixels of a prediction on a device: rendered, cut, blended and turned into bytes there.

`host` has the same rules for processors, as kernels of numba. These are operators of
torch, within one level of a byte of them. Pixels are copied to the device and rendered in a stream
of their own, while the model computes in another one. Only bytes come back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geoprep.cog.writer import CogWriter
from geoprep.imagery.counts import count_source
from geoprep.imagery.decoding import ImageWindow
from geoprep.imagery.wide import is_held_wide
from geoprep.speed import MAX_MPH, NODATA
from loaders import has_streams
from training.checkpoint import ModelInfo
from training.prediction.image_rows import ImageRows
from training.prediction.predict_options import PredictOptions
from training.prediction.window_rows import Bytes, WindowRow
from training.prediction.windows import Doubles, WindowGrid
from training.runners.runner import pad_batch

IN_FLIGHT = 2
"""Pieces of rows that are queued on a device while the host writes an earlier one."""

Convert = Callable[[Tensor, Tensor], tuple[Tensor, Any]]
"""Probabilities (y, x, channel) and where pixels are valid (y, x) -> bands (band, y, x), and the
number of pixels that are not finite."""


class Device:
    """What `Host` is, on a device, and its queues."""

    blends = "torch"
    decoders = 8
    count_nonzero = staticmethod(torch.count_nonzero)

    def __init__(self, device: torch.device) -> None:
        self.device, self._module = device, torch.get_device_module(device)
        self.pins = has_streams(device)  # the CPU stands in for a device in tests
        self._copies = self._module.Stream(device)
        self.timings: list[tuple[Any, Any]] = []

    def working(self) -> AbstractContextManager[object]:
        """Return a context in which the thread that reads copies and renders."""
        context: AbstractContextManager[object] = self._module.stream(self._copies)
        return context

    def filled(self, shape: Sequence[int], value: int) -> Tensor:
        """See `Host`."""
        return torch.full(tuple(shape), value, dtype=torch.uint8, device=self.device)

    def put(self, values: NDArray[Any]) -> Tensor:
        """Return values on the device, int16 in place of uint16, which torch hardly knows."""
        values = values.view(np.int16) if values.dtype == np.uint16 else values
        host = torch.from_numpy(np.ascontiguousarray(values))
        # The allocator keeps a pinned block until copies from it, or into it, are done.
        host = host.pin_memory() if self.pins else host
        return host.to(self.device, non_blocking=self.pins)

    def count(self, pixels: ImageWindow) -> NDArray[np.int64]:
        """See `imagery.count_source`; threads call it."""
        if is_held_wide(pixels.values):
            return count_source(pixels)  # by NumPy
        with self.working():
            values = self._numbers(pixels.values)
            if pixels.valid is not None:
                values = values[self.put(pixels.valid) != 0]
            size = 1 << 8 * pixels.values.itemsize
            bands = values.flatten(0, -2).unbind(-1)
            counts = [torch.bincount(band.long(), minlength=size) for band in bands]
            counted: NDArray[np.int64] = torch.stack(counts).cpu().numpy()
        return counted

    def _numbers(self, values: NDArray[Any]) -> Tensor:
        there = self.put(values)
        return there.int() & 0xFFFF if values.dtype == np.uint16 else there

    def render(
        self, pixels: ImageWindow, tables: NDArray[Any], ys: Doubles, xs: Doubles
    ) -> tuple[Tensor, Tensor]:
        """See `Host`."""
        values = self._numbers(pixels.values).double()
        valid = self.filled(values.shape[:2], 1) if pixels.valid is None else self.put(pixels.valid)
        shares = valid.double()[..., None]
        values = torch.where(shares > 0, values, 0)
        for edges in (ys, xs):  # along rows, then along columns
            values, shares = (self._sums(part, edges).transpose(0, 1) for part in (values, shares))
        whole = torch.outer(self.put(np.diff(ys)), self.put(np.diff(xs)))[..., None]
        keep = (shares > 0) & (shares >= 0.5 * whole - 1e-9)
        means, limits = values / shares, self.put(tables)
        if is_held_wide(pixels.values):
            low, high = limits.unbind(1)
            out = ((means - low) * 255 / (high - low) + 0.5).floor().clamp(1, 255)
        else:
            places = torch.where(keep, means + 0.5 + 1e-9, 0).long()
            begins = torch.arange(len(limits), device=self.device) * limits.shape[1]
            out = limits.flatten()[places + begins]
        return torch.where(keep, out, 0).byte(), keep[..., 0].byte()

    def _sums(self, values: Tensor, edges: Doubles) -> Tensor:
        """Return the sums of values (y, ...) between edges, in parts of rows."""
        first = np.floor(edges[:-1]).astype(np.int64)
        if (edges[:-1] == first).all() and (np.diff(edges) == 1).all():  # pixel by pixel
            return values[first[0] : first[-1] + 1]
        total: Any = 0
        for step in range(int((np.ceil(edges[1:]) - first).max())):
            row = first + step
            share = np.minimum(row + 1, edges[1:]) - np.maximum(row, edges[:-1])
            part = self.put(np.clip(share, 0, None))[:, None, None]
            total = total + values[self.put(row.clip(max=len(values) - 1))] * part
        sums: Tensor = total
        return sums

    def mark(self) -> Any:  # noqa: ANN401 - an event of the device
        """Return an event after what is queued by this thread."""
        event = self._module.Event()
        event.record(self._module.current_stream(self.device))
        return event

    def receive(self, row: WindowRow) -> None:
        """Let what is queued from now on wait for the copies of a row."""
        stream = self._module.current_stream(self.device)
        row.ready.wait(stream)
        if self.pins:  # memory of the other stream, which must not use it again before this one
            for part in (row.image, row.valid):
                part.record_stream(stream)

    def windows(
        self, row: WindowRow, columns: Sequence[int], grid: WindowGrid, count: int
    ) -> Tensor:
        """See `Host`."""
        starts, side = [grid.columns.starts[column] for column in columns], grid.columns.side
        cut = torch.stack([row.image[:, start : start + side] for start in starts])
        return pad_batch(cut.permute(0, 3, 1, 2), count)

    def timed(self, forward: Callable[[Tensor], Tensor], windows: Tensor) -> Tensor:
        """Return what a model computes, which is queued."""
        if not self.pins:
            return forward(windows)
        began, ended = (self._module.Event(enable_timing=True) for _ in range(2))
        began.record()
        output = forward(windows)
        ended.record()
        self.timings.append((began, ended))
        return output

    def to_bytes(
        self, info: ModelInfo, options: PredictOptions, threshold: float, spread: bool
    ) -> Convert:
        """See `Host`; as `road_bytes` and `class_bytes` do."""
        mph = np.clip(np.array(info.class_mph, np.float32) + 0.5, 1, MAX_MPH).astype(np.uint8)
        class_mph = self.put(mph)

        def convert(values: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
            models = values[..., : values.shape[-1] - spread]
            channels = models.unbind(-1)
            if info.has_classes:
                ordered = models.sort(dim=-1, descending=True, stable=True)
                bands, wanted = [ordered.indices[..., 0].byte()], channels * options.probabilities
                if options.confidence:
                    second = ordered.values[..., 1].clamp(min=0) if len(channels) > 1 else 0
                    bands.append(_scaled(ordered.values[..., 0] - second))
            else:
                road = channels[-1]
                bands, wanted = [_scaled(road)], channels[:-1] * (options.outputs == "all")
                if len(class_mph):
                    best = models[..., : len(class_mph)].argmax(-1)
                    bands.append(torch.where(road >= threshold, class_mph[best], 0))
            bands += map(_scaled, [*wanted, *[values[..., -1]] * spread])
            finite, seen = models.sum(-1).isfinite(), valid != 0
            return torch.stack(bands).masked_fill_(~(seen & finite), NODATA), (seen & ~finite).sum()

        return convert

    def blender(
        self, grid: WindowGrid, channels: int, bands: int, convert: Convert | None
    ) -> AbstractContextManager[DeviceBlender]:
        """See `Host`."""
        del bands
        return nullcontext(DeviceBlender(grid, channels, convert or as_they_are, self))

    def image_rows(self, *args: Any) -> DeviceImageRows:  # noqa: ANN401 - its own
        """See `Host`."""
        rows = DeviceImageRows(*args)
        rows.place = self
        return rows

    def downloads(self, writer: CogWriter) -> AbstractContextManager[Downloads]:
        """See `Host`."""
        return Downloads(self, writer)

    def halve(self, fine: Bytes, coarse: Bytes, by_mode: bool) -> None:
        """See `Halve`; the thread that writes calls it, which must not wait for the model."""
        with self.working():
            height, width = coarse.shape
            four = self.put(fine[: 2 * height, : 2 * width]).view(height, 2, width, 2)
            four = four.transpose(1, 2).reshape(height, width, 4)
            if by_mode:  # sorted, the largest first, and nodata as 0 behind all values
                a, b, c, d = (four + 1).sort(dim=-1, descending=True).values.unbind(-1)
                most = torch.where((c == d) & (c > 0) & (a != b), c, a)
                out = torch.where((b == c) & (b > 0), b, most) - 1
            else:
                known = four != NODATA
                count, total = known.sum(-1), (four * known).sum(-1)
                average = (2 * total + count) // (2 * count.clamp(min=1))
                out = torch.where(count > 0, average, NODATA).byte()
            coarse[...] = out.cpu().numpy()


class DeviceBlender:
    """As `RowBlender`, with the weighted sums under all windows of a row on the device."""

    def __init__(self, grid: WindowGrid, channels: int, convert: Convert, place: Device) -> None:
        self._rows, self._columns, self._convert = grid.rows, grid.columns, convert
        shape = grid.rows.side, grid.columns.covered, channels
        self._sums = torch.zeros(shape, device=place.device)
        self._down, self._across = place.put(grid.rows.weights), place.put(grid.columns.weights)
        self.lost: Any = 0  # a tensor, which is read at the end

    def add(self, row: WindowRow, columns: Sequence[int], probabilities: Tensor) -> None:
        """Add windows of a row by their indices, float32 (n, y, x, channel)."""
        down = self._down[row.number][:, None]
        for column, window in zip(columns, probabilities, strict=True):
            start = self._columns.starts[column]
            weights = down * self._across[column]
            self._sums[:, start : start + len(weights[0])].addcmul_(window, weights[..., None])

    def take(self, row: WindowRow) -> Tensor:
        """Return the bands (band, y, x) of the rows that no further window touches."""
        done = self._rows.finished(row.number) - self._rows.starts[row.number]
        finished = self._sums[:done, : self._columns.length]
        out, lost = self._convert(finished, row.valid[:done])
        self.lost = self.lost + lost
        shared = self._sums[done:].clone()
        self._sums[: len(shared)] = shared
        self._sums[len(shared) :] = 0
        return out


def as_they_are(values: Tensor, valid: Tensor) -> tuple[Tensor, int]:
    """Return probabilities (channel, y, x), to be interpolated; see `Convert`."""
    del valid
    return values.permute(2, 0, 1).clone(), 0


def _scaled(value: Tensor) -> Tensor:
    """Return probabilities times 255 as bytes, rounded half up, 0 to 254."""
    return (value * 255 + 0.5).clamp(0, 254).byte()


class DeviceImageRows(ImageRows):
    """As `ImageRows`, on the device; ``convert`` is a `Convert`."""

    _join = staticmethod(torch.cat)
    place: Device

    def _piece(self, top: int, values: Any, valid: Any, count: int) -> Any:  # noqa: ANN401 - tensors
        near, known, down, seen = self._under(top, values, valid, self._next, count)
        put, known = self.place.put, known.float()
        rows, columns = (np.floor(at).astype(np.int64) for at in (down, self._across))
        below, beside = down - rows, self._across - columns
        lower, after = put(below.astype(np.float32))[:, None], put(beside.astype(np.float32))
        sums: Any = 0
        shares: Any = 0
        for weight, row in ((1 - lower, rows), (lower, (rows + 1).clip(max=len(near) - 1))):
            share = weight * known[put(row)]
            sums = sums + torch.where(share > 0, near[put(row)].permute(2, 0, 1) * share, 0)
            shares = shares + share
        left, right = put(columns), put(columns + (beside > 0))
        total = (1 - after) * shares[:, left] + after * shares[:, right]
        mixed = ((1 - after) * sums[..., left] + after * sums[..., right]) / total
        out, lost = self._convert(mixed.permute(1, 2, 0), (total > 0) & (put(seen) != 0))
        self.lost = self.lost + lost
        return out


class Downloads:
    """Copies rows of bytes to the host, and gives them to a writer while later ones are queued."""

    def __init__(self, place: Device, writer: CogWriter) -> None:
        self._place, self._writer = place, writer
        self._waiting: deque[tuple[Tensor, Any]] = deque()

    def put(self, part: Tensor) -> None:
        """Queue the copy of rows, uint8 (band, y, x)."""
        host = torch.empty(part.shape, dtype=torch.uint8, pin_memory=self._place.pins)
        host.copy_(part.contiguous(), non_blocking=self._place.pins)
        self._waiting.append((host, self._place.mark()))
        if len(self._waiting) > IN_FLIGHT:
            self._write_oldest()

    def __enter__(self) -> Downloads:
        return self

    def __exit__(self, kind: type | None, *error: object) -> None:
        while self._waiting and kind is None:
            self._write_oldest()

    def _write_oldest(self) -> None:
        host, event = self._waiting.popleft()
        event.synchronize()
        self._writer.put(host.numpy())
