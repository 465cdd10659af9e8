"""Kill commands at random moments, then run the same command again."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.faults import jobs
from benchmarks.faults.children import Ending
from benchmarks.faults.jobs import (
    FaultInputs,
    WritingCommand,
    differences,
    finished,
    require_finished,
)
from benchmarks.faults.report import FaultRow
from geoprep.cpus import usable_cpus

HELD = "the same command finishes it; every byte equals that of an uninterrupted run"
MOST_KILLS = 3
SOONEST = 0.01
KILLED = {
    "build-zarr": "`build-zarr`",
    "predict": "`training.predict`",
    "fit": "`training.fit`",
    "page": "`preview --out page.html` (a hidden partial file may remain)",
}


def rows(inputs: FaultInputs, seed: int, trials: int) -> Iterator[FaultRow]:
    """Yield the result of killing each command in ``trials`` trials."""
    writing_commands = jobs.writing_commands(inputs)
    for name, what in KILLED.items():
        rng = random.Random(f"{seed} {what} killed")
        with FaultRow(f"{what} killed at random moments", HELD) as row:
            killed_rows(writing_commands[name], inputs.folder / "killed", rng, trials, row)
        yield row


def killed_rows(
    writer: WritingCommand, folder: Path, rng: random.Random, trials: int, row: FaultRow
) -> None:
    """Kill a command up to `MOST_KILLS` times, finish it and compare, in ``trials`` trials."""
    folder.mkdir()
    whole = require_finished(writer.start(folder))
    expected = writer.result(folder)

    def trial(number: int, moments: list[float]) -> tuple[int, list[str]]:
        place = folder / f"{number}"
        endings = [_killed(writer, place, moments[0])]
        endings += [writer.start(place, kill_after=moment) for moment in moments[1:]]
        wrong = [str(ending) for ending in endings if not ending.orderly]
        last = writer.start(place)
        if finished(last):
            wrong += differences(writer.result(place), expected)
            if writer.made.endswith(".zarr"):
                wrong += jobs.store_problems(place / writer.made)
                wrong += [f"{left.name} is left" for left in place.glob("*.build")]
        else:
            wrong.append(f"not finished: {last}")
        shutil.rmtree(place)
        return sum(ending.how == "killed" for ending in endings), wrong

    drawn = [
        [rng.uniform(0, whole.seconds) for _ in range(rng.randint(1, MOST_KILLS))]
        for _ in range(trials)
    ]
    kills = 0
    with ThreadPoolExecutor(usable_cpus()) as pool:
        for killed, wrong in pool.map(trial, range(trials), drawn):
            kills += killed
            row.count(wrong)
    row.note = f"{kills} kills"
    shutil.rmtree(folder)


def _killed(writer: WritingCommand, place: Path, moment: float) -> Ending:
    """Return the end of a killed run; a run that finishes first is repeated and killed sooner."""
    place.mkdir()
    ending = writer.start(place, kill_after=moment)
    if ending.how == "done" and moment > SOONEST:
        shutil.rmtree(place)
        return _killed(writer, place, moment / 2)
    return ending
