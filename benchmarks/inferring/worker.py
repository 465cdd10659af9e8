"""One form of a network in a process of its own: it answers what it is asked, line by line."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.machine import resident
from training.deploy.opening import open_network
from training.engine.host import keep_memory
from training.prediction.runner import Compile, Runner

_ENOUGH = 10**12
"""Pixels that pay for compiling."""


def main(task: dict[str, Any]) -> None:
    """Answer every line of standard input; the first answer is how long it took to load."""
    keep_memory(1 << 30)
    began = time.perf_counter()
    mode: Compile = "on" if task["compiled"] else "off"
    runner, facts = open_network(
        Path(task["file"]), precision=task["precision"], compile_mode=mode, device="cpu"
    )
    runner, _ = runner.for_pixels(_ENOUGH)
    answer({"load_s": time.perf_counter() - began, "runs_as": runner.description})
    for line in sys.stdin:
        asked = json.loads(line)
        image = images(int(asked["count"]), len(facts.bands), int(asked["side"]))
        if asked["do"] == "first":
            answer({"first_s": seconds(runner, image)})
        elif asked["do"] == "latency":
            answer({"seconds": [seconds(runner, image) for _ in range(int(asked["times"]))]})
        elif asked["do"] == "rate":
            answer({"mpx_s": rate(runner, image, asked["seconds"]), "peak": resident()})


def images(count: int, bands: int, side: int) -> Tensor:
    """Return uint8 (n, band, y, x), channels last."""
    image = torch.randint(0, 256, (count, bands, side, side), dtype=torch.uint8)
    return image.contiguous(memory_format=torch.channels_last)


def seconds(runner: Runner, image: Tensor) -> float:
    """Return how long one batch takes."""
    began = time.perf_counter()
    runner(image)
    return time.perf_counter() - began


def rate(runner: Runner, image: Tensor, least: float) -> float:
    """Return megapixels per second, over at least two batches and so many seconds."""
    began, done = time.perf_counter(), 0
    while done < 2 or time.perf_counter() - began < least:
        runner(image)
        done += 1
    pixels = done * len(image) * image.shape[2] * image.shape[3]
    return pixels / 1e6 / (time.perf_counter() - began)


def answer(values: dict[str, Any]) -> None:
    """Say something to whoever asked."""
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
