"""One form of a network in a process of its own: it answers what it is asked, line by line."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.fitting.mapping import Silent
from benchmarks.machine import resident
from training.engine.host import keep_memory
from training.evaluation import evaluate_runner
from training.predict import COMMAND, Request, make_job
from training.prediction.job import Job
from training.prediction.runner import Runner

_ENOUGH = 10**12
"""Pixels that pay for compiling."""


def main(words: list[str]) -> None:
    """Answer every line of standard input; the first answer is how long it took to load.

    Parameters
    ----------
    words
        Of the command line of `training.predict`: its network runs, its images can be mapped.
    """
    keep_memory(1 << 30, one_heap=True)
    began = time.perf_counter()
    request = Request(**COMMAND.parse(words))
    job, _ = make_job(request)
    soon, _ = job.runner.for_pixels(0)
    runner, _ = job.runner.for_pixels(_ENOUGH)
    job = replace(job, runner=runner)
    answer({"load_s": time.perf_counter() - began, "runs_as": runner.description})
    answers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "first": lambda asked: {
            "seconds": seconds(soon if asked["count"] == 1 else runner, _images(job, asked))
        },
        "latency": lambda asked: latency(soon, _images(job, asked), asked["times"]),
        "rate": lambda asked: rate(runner, _images(job, asked), asked["seconds"]),
        "map": lambda _: mapped(job, request.images),
        "judge": lambda asked: judged(job, asked["store"]),
    }
    for line in sys.stdin:
        asked = json.loads(line)
        answer(answers[asked["do"]](asked))


def _images(job: Job, asked: dict[str, Any]) -> Tensor:
    return images(asked["count"], len(job.mapper.facts.bands), asked["side"])


def images(count: int, bands: int, side: int) -> Tensor:
    """Return uint8 (n, band, y, x), channels last."""
    image = torch.randint(0, 256, (count, bands, side, side), dtype=torch.uint8)
    return image.contiguous(memory_format=torch.channels_last)


def seconds(runner: Runner, image: Tensor) -> float:
    """Return how long one batch takes."""
    began = time.perf_counter()
    runner(image)
    return time.perf_counter() - began


def latency(runner: Runner, image: Tensor, times: int) -> dict[str, Any]:
    """Return how long each of so many batches takes."""
    return {"seconds": [seconds(runner, image) for _ in range(times)]}


def rate(runner: Runner, image: Tensor, least: float) -> dict[str, Any]:
    """Return megapixels per second, over at least two batches and so many seconds; peak bytes."""
    began, done = time.perf_counter(), 0
    while done < 2 or time.perf_counter() - began < least:
        runner(image)
        done += 1
    pixels = done * len(image) * image.shape[2] * image.shape[3]
    return {"mpx_s": pixels / 1e6 / (time.perf_counter() - began), "peak": resident()}


def mapped(job: Job, images: tuple[str, ...]) -> dict[str, Any]:
    """Return megapixels per second of making maps: through the network, and of the maps."""
    stats = [outcome.stats for outcome in job.run(images, Silent())]
    took = sum(one.seconds for one in stats if one)
    return {
        "network_mpx_s": sum(one.network_pixels for one in stats if one) / 1e6 / took,
        "image_mpx_s": sum(one.image_pixels for one in stats if one) / 1e6 / took,
    }


def judged(job: Job, store: str) -> dict[str, Any]:
    """Return the metrics of `training.evaluate` on the validation tiles of a store."""
    facts = job.mapper.facts
    found = evaluate_runner(
        job.runner,
        facts,
        [store],
        "val",
        threshold=job.mapper.threshold,
        quiet=True,
    )
    return {name: found.metrics[name] for name in ("road_iou", "bin_iou") if name in found.metrics}


def answer(values: dict[str, Any]) -> None:
    """Say something to whoever asked."""
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
