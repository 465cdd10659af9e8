"""What a training loop sees: batches on a device, images normalised, with targets.

The device is the accelerator, or the processor where there is none. Loaders of bytes send bytes to
it, which are normalised there; others send the float32 and int64 that their workers made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks.child import ChildError, ChildProcess
from benchmarks.common import Result, announce
from benchmarks.loading.other_loaders import timed_rate
from benchmarks.loading.peer_server import Answer, PeerServer
from benchmarks.loading.peer_task import MEAN, STD, Loader, Pair, Pairs, Task
from benchmarks.memory import settled_memory
from loaders import Batch, BatchLoader, DevicePrep, Normalize, SpeedTarget, has_streams

LOOPS = {
    "ours": "ours: BatchLoader, uint8",
    "ours_dataset": "ours: TileDataset in DataLoader, uint8",
    "uint8": "DataLoader, uint8",
    "normalised": "DataLoader, float32 normalised by its workers",
    "classic": "DataLoader, float32 normalised on the device",
    "torchgeo": "TorchGeo, float32 normalised on the device",
}
"""Loader in `benchmarks.loading.peers` to its title."""
TICK = 0.01
"""Seconds that the kernel counts processor time in."""
QUICK_LOOPS = ("ours", "uint8", "normalised")


class LoopServer(PeerServer):
    """As `PeerServer`; the batches of its loader are on the device, with the target ``bins``."""

    def open(self) -> Answer:
        """Create the loader, which pins its batches for a device that takes them so."""
        answer = super().open()
        self.device = torch.accelerator.current_accelerator() or torch.device("cpu")
        self.prep = DevicePrep(Normalize(MEAN, STD), SpeedTarget("bins")).to(self.device)
        statistics = torch.tensor([MEAN, STD], device=self.device) / self.peer.grey
        self.mean, self.std = statistics[:, None, :, None, None]
        self.sent = 0  # bytes of the last batch
        source: Any = self.loader
        inner = source.loader if isinstance(source, Pairs) else source
        if isinstance(inner, DataLoader):
            inner.pin_memory = has_streams(self.device)
        # A batch of ours moves as one block.
        self.loader = _OnDevice(inner if isinstance(inner, BatchLoader) else source, self)
        return answer

    def described(self) -> Answer:
        """Return device and bytes per batch."""
        return {"device": self.device.type, "sent": self.sent}

    def move(self, batch: Batch | Pair) -> Pair:
        """Return a normalised image and its target on the device."""
        if isinstance(batch, Batch):
            self.sent = sum(part.nbytes for part in (batch.image, batch.label))
            image, target, _ = self.prep(batch.to(self.device, non_blocking=True))
            return image, target
        image, mask = (part.to(self.device, non_blocking=True) for part in batch)
        self.sent = image.nbytes + mask.nbytes
        if image.dtype == torch.uint8:
            bands_last = image.shape[1:3] == mask.shape[-2:]
            image = self.prep.normalize(image.permute(0, 3, 1, 2) if bands_last else image)
        elif not self.peer.normalised:
            image = (image - self.mean) / self.std
        mask = mask.reshape(len(image), *image.shape[2:])
        return image, self.prep.target(mask.to(torch.uint8))


class _OnDevice:
    def __init__(self, loader: Loader | BatchLoader, server: LoopServer) -> None:
        self.loader, self.server = loader, server

    def __iter__(self) -> Iterator[Pair]:
        yield from map(self.server.move, self.loader)
        if self.server.device.type != "cpu":
            torch.accelerator.synchronize()


def measure_loop(result: Result, task: Task, peers: Sequence[str]) -> None:
    """Record rate, processor time, memory, and bytes to the device of loops with some loaders.

    A quick run has too few batches to fill the buffers: it records no memory.
    """
    cases: dict[str, Callable[[], dict[str, Any]]] = {}
    with ExitStack() as stack:
        for peer in peers:
            announce(LOOPS[peer])
            given = {"peer": peer, "task": asdict(task)}
            target = "benchmarks.loading.device_loop:LoopServer"
            try:
                child = stack.enter_context(ChildProcess(target, given))
                child.answer()
                child.ask("prepare")
                child.ask("open")
                if not result.settings["quick"]:
                    before = settled_memory(child.process.pid)
                    child.ask("hold")
                    added = settled_memory(child.process.pid) - before
                    result.add(f"loop.{peer}.memory", "MB", [added / 1e6])
                    child.ask("release")
                child.ask("first")
            except ChildError as error:
                result.notes.append(f"{LOOPS[peer]}: left out, {error}")
                continue
            of = child.ask("described")
            result.settings["device"] = of["device"]
            result.add(f"loop.{peer}.sent", "MB", [of["sent"] / 1e6])
            cases[peer] = partial(timed_rate, child, result.settings["seconds"])
        for peer, runs in result.turns(cases).items():
            batches = [run["tiles"] / task.batch_size for run in runs]
            for name, seconds in (("rate", "seconds"), ("cpu", "cpu")):
                spent = (max(run[seconds], TICK) for run in runs)
                rates = [count / took for count, took in zip(batches, spent, strict=True)]
                result.add(f"loop.{peer}.{name}", "batches/s", rates)
