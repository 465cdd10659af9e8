"""SIGKILL at random moments, then the same command again."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.faults import jobs
from benchmarks.faults.children import Ending
from benchmarks.faults.jobs import Work, World, differences, finished, sound
from benchmarks.faults.report import Row
from geoprep.cpus import usable_cpus

HELD = "the same command finishes it; every byte is that of an undisturbed run"
MOST_KILLS = 3
SOONEST = 0.01
KILLED = {
    "build-zarr": "`build-zarr`",
    "predict": "`training.predict`",
    "fit": "`training.fit`",
    "page": "`preview --out page.html` (a hidden partial file may stay)",
}


def rows(world: World, seed: int, trials: int) -> Iterator[Row]:
    """Kill each kind of work some times."""
    works = jobs.works(world)
    for name, what in KILLED.items():
        rng = random.Random(f"{seed} {what} killed")
        with Row(f"{what} killed at random moments", HELD) as row:
            killed_rows(works[name], world.folder / "killed", rng, trials, row)
        yield row


def killed_rows(work: Work, folder: Path, rng: random.Random, trials: int, row: Row) -> None:
    """Kill, finish and compare, ``trials`` times; each time up to `MOST_KILLS` kills."""
    folder.mkdir()
    whole = sound(work.start(folder))
    expected = work.result(folder)

    def trial(number: int, moments: list[float]) -> tuple[int, list[str]]:
        place = folder / f"{number}"
        endings = [_killed(work, place, moments[0])]
        endings += [work.start(place, kill_after=moment) for moment in moments[1:]]
        wrong = [str(ending) for ending in endings if not ending.orderly]
        last = work.start(place)
        if finished(last):
            wrong += differences(work.result(place), expected)
            if work.made.endswith(".zarr"):
                wrong += jobs.store_problems(place / work.made)
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


def _killed(work: Work, place: Path, moment: float) -> Ending:
    """Return how a run ends that is killed: where it was faster than that, another is, sooner."""
    place.mkdir()
    ending = work.start(place, kill_after=moment)
    if ending.how == "done" and moment > SOONEST:
        shutil.rmtree(place)
        return _killed(work, place, moment / 2)
    return ending
