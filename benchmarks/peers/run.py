"""One peer in a process of its own, told what to do by lines of JSON.

    python -m benchmarks.peers.run ffcv_loader '{"folder": ..., "batch_size": 32, "workers": 2}'

It answers every line on standard input with one on standard output:

- ``prepare``: the peer's own format is written, where it is not there yet;
- ``open``: the loader is made; seconds it took;
- ``first``: the first epoch; seconds to its first batch, its tiles, and the sums of their pixels;
- ``rate``: whole epochs for so many ``seconds``; tiles, seconds, and the time of every batch;
- ``hold`` and ``release``: stop in the middle of an epoch, holding one batch, and go on to its end.

The first answer, unasked, says that its packages are imported and which versions they have, or
that one of them is missing. Standard output of the peer itself goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

from benchmarks.peers.base import Loader, Peer, Task

if TYPE_CHECKING:
    from torch import Tensor

HOLD_AT = 3
"""Batches taken before a loop is held: the buffers of any loader are full by then."""

Answer = dict[str, Any]


class Session:
    """A peer, and what has been done with it.

    Parameters
    ----------
    name
        Its module in this package.
    task
        What it reads.
    """

    def __init__(self, name: str, task: Task) -> None:
        self.source = task.folder / name
        self.task = task
        self.peer = cast(Peer, importlib.import_module(f"benchmarks.peers.{name}"))
        self._loader: Loader | None = None
        self._held: tuple[Iterator[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]] | None = None

    @property
    def loader(self) -> Loader:
        """The loader; `open` has made it."""
        assert self._loader is not None, "asked for batches before open"
        return self._loader

    def prepare(self) -> Answer:
        """Write the peer's own format; a folder that is there was finished."""
        if not self.source.exists():
            partial = self.source.with_name(f"{self.source.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            self.peer.prepare(self.task, partial)
            partial.rename(self.source)
        return {}

    def open(self) -> Answer:
        """Make the loader."""
        start = time.perf_counter()
        self._loader = self.peer.open_loader(self.task, self.source)
        return {"seconds": time.perf_counter() - start}

    def first(self) -> Answer:
        """Begin an epoch, and add up every pixel of it."""
        import torch

        start = time.perf_counter()
        batches = iter(self.loader)
        batch: tuple[Tensor, Tensor] | None = next(batches)
        seconds = time.perf_counter() - start
        tiles, image_sum, speed_sum = 0, 0.0, 0
        while batch is not None:  # no other batch is held, or buffers would be more than usual
            image, speed = batch
            tiles += len(image)
            image_sum += float(image.sum(dtype=torch.float64)) * self.peer.GREY
            speed_sum += int(speed.sum(dtype=torch.int64))
            batch = next(batches, None)
        sums = {"tiles": tiles, "image_sum": image_sum, "speed_sum": speed_sum}
        return {"seconds": seconds, **sums}

    def rate(self, seconds: float) -> Answer:
        """Take batches and drop them; the first of an epoch does not count among the batches."""
        tiles, times = 0, []
        start = now = time.perf_counter()
        while now - start < seconds:
            begun = True
            for image, _ in self.loader:
                before, now = now, time.perf_counter()
                tiles += len(image)
                if not begun:
                    times.append(now - before)
                begun = False
            now = time.perf_counter()
        return {"tiles": tiles, "seconds": now - start, "batches": times}

    def hold(self) -> Answer:
        """Stop where a training loop would compute; buffers fill up meanwhile."""
        batches = iter(self.loader)
        for _ in range(HOLD_AT):
            batch = next(batches)
        self._held = batches, batch
        return {}

    def release(self) -> Answer:
        """Go on to the end of the epoch that was held."""
        assert self._held is not None, "asked to release before hold"
        batches, _ = self._held
        self._held = None
        for _ in batches:
            pass
        return {}


def main(arguments: list[str]) -> int:
    """Serve until standard input ends."""
    name, text = arguments
    # A descriptor that workers and chatty libraries do not write to.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(values: Answer) -> None:
        answers.write(json.dumps(values) + "\n")

    start = time.perf_counter()
    try:
        session = Session(name, Task.parse(text))
    except ImportError as error:
        answer({"skipped": f"{error.name or error} is not installed"})
        return 0
    versions = {package: version(package) for package in ("torch", *session.peer.PACKAGES)}
    answer({"seconds": time.perf_counter() - start, "versions": versions, "python": sys.version})
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        do: Callable[..., Answer] = getattr(session, command.pop("do"))
        answer(do(**command))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
