"""Tables of the loader benchmark."""

from __future__ import annotations

from benchmarks.common import Result
from benchmarks.loading.augmentations import AUGMENTS
from benchmarks.loading.other_loaders import ENTRIES
from benchmarks.loading.rates import RESIDENCIES
from benchmarks.loading.worker_memory import MODES, WORKERS
from benchmarks.tables import Table


def tables(result: Result) -> list[Table]:
    """Return the tables of the report."""
    of = result.settings
    storage = {"MB": "held", "tiles/s": "whole.rate", "us per tile": "whole.cpu"}
    storage |= {"crops/s": "crops.rate", "us per crop": "crops.cpu"}
    workers = {title: f"memory.{mode}.total" for mode, (_, _, title) in MODES.items()}
    counts = {str(count): str(count) for count in WORKERS}
    peers = {"images/s": "rate", "CPU us": "cpu", "p50 ms": "p50", "p99 ms": "p99"}
    peers |= {"start s": "start", "first s": "first", "MB per worker": "memory"}
    residencies = {title: f"residency.{kind}" for kind, title in RESIDENCIES.items()}
    loaders = {entry.title: f"peers.{entry.name}" for entry in ENTRIES}
    augments = {text: f"augment.{name}" for name, text in AUGMENTS.items()}
    crops, cost = f"{of['crop']}-crops with D4", {"images/s": "rate", "CPU us per image": "cpu"}
    return [
        Table(
            f"Memory per number of workers, MB, batches of {of['batch_size']} whole tiles",
            workers,
            counts,
            head="workers",
            reading="Read a row from left to right: MB that loading adds to the process and its "
            "workers, with one batch ready per worker. The tiles themselves are not counted.",
        ),
        Table(
            f"Images per second, {of['threads']} workers, whole tiles unless noted",
            loaders,
            peers,
            medians=list(peers.values())[1:],
            reading="Read images/s first: if it is above ten times the images per second of your "
            "training step, a faster loader changes nothing. CPU us is what one image takes from "
            "your model on the same processor; p99 is the longest wait in a hundred batches.",
        ),
        Table(f"Storage of tiles, {crops}", residencies, storage),
        Table(f"Cost of augmentations, {crops}, 3 bands", augments, cost),
    ]
