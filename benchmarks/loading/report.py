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
        ),
        Table(
            f"Images per second, {of['threads']} workers, whole tiles unless noted",
            loaders,
            peers,
            medians=list(peers.values())[1:],
        ),
        Table(f"Storage of tiles, {crops}", residencies, storage),
        Table(f"Cost of augmentations, {crops}, 3 bands", augments, cost),
    ]
