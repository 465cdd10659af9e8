"""SIGKILL at random moments, then the same command again."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults import jobs
from benchmarks.faults.children import Ending, run
from benchmarks.faults.jobs import World, differences
from benchmarks.faults.report import Row, timed
from geoprep.executors import usable_cores

HELD = "the same command finishes it; every byte is that of an undisturbed run"
MOST_KILLS = 3
SOONEST = 0.01


@dataclass(frozen=True)
class Work:
    """A command that is killed: how it is run, and what of its result must be the same."""

    what: str
    start: Callable[..., Ending]
    seen: Callable[[Path], dict[str, str]]
    check: Callable[[Path], list[str]] = lambda _: []


def works(world: World) -> list[Work]:
    """Return what is killed."""
    return [
        Work(
            "`build-zarr` killed",
            lambda out, **how: run(jobs.build_store, world.source, out, **how),
            jobs.digest,
            _check_build,
        ),
        Work(
            "`training.predict` killed",
            lambda out, **how: run(jobs.predict_map, world.checkpoint, world.image, out, **how),
            jobs.digest,
        ),
        Work(
            "`training.fit` killed",
            lambda out, **how: run(jobs.fit_network, world.store, out, **how),
            jobs.weights,
        ),
        Work(
            "`preview --out page.html` (a hidden partial file may stay) killed",
            lambda out, **how: run(_page, world.store, out, **how),
            lambda out: jobs.digest(out / "page.html"),
        ),
    ]


def _page(store: Path, out: Path) -> int:
    out.mkdir(exist_ok=True)
    return jobs.command("preview", str(store), "--out", str(out / "page.html"), "--quiet")


def _check_build(out: Path) -> list[str]:
    left = out.with_name(out.name + ".build")
    return jobs.store_problems(out) + ([f"{left.name} is left"] if left.exists() else [])


def rows(world: World, seed: int, trials: int) -> Iterator[Row]:
    """Kill each kind of work some times."""
    for work in works(world):
        rng = random.Random(f"{seed} {work.what}")
        with timed(Row("killed", work.what + " at random moments", HELD)) as row:
            killed_rows(work, world.folder / "killed", rng, trials, row)
        yield row


def killed_rows(work: Work, folder: Path, rng: random.Random, trials: int, row: Row) -> None:
    """Kill, finish and compare, ``trials`` times; each time up to `MOST_KILLS` kills."""
    folder.mkdir()
    whole = work.start(folder / "whole")
    if not _finished(whole):
        row.count([f"undisturbed: {whole}"])
        return
    expected = work.seen(folder / "whole")

    def trial(number: int, moments: list[float]) -> tuple[int, list[str]]:
        out = folder / f"{number}" / "out"
        out.parent.mkdir()
        endings = [_killed(work, out, moments[0])]
        endings += [work.start(out, kill_after=moment) for moment in moments[1:]]
        wrong = [str(ending) for ending in endings if not ending.orderly]
        wrong += _problems(work, work.start(out), out, expected)
        shutil.rmtree(out.parent)
        return sum(ending.how == "killed" for ending in endings), wrong

    drawn = [
        [rng.uniform(0, whole.seconds) for _ in range(rng.randint(1, MOST_KILLS))]
        for _ in range(trials)
    ]
    kills = 0
    with ThreadPoolExecutor(usable_cores()) as pool:
        for killed, wrong in pool.map(trial, range(trials), drawn):
            kills += killed
            row.count(wrong)
    row.note = f"{kills} kills"
    shutil.rmtree(folder)


def _killed(work: Work, out: Path, moment: float) -> Ending:
    """Return how a run ends that is killed: where it was faster than that, another is, sooner."""
    ending = work.start(out, kill_after=moment)
    while ending.how == "done" and moment > SOONEST:
        shutil.rmtree(out)
        moment /= 2
        ending = work.start(out, kill_after=moment)
    return ending


def _finished(ending: Ending) -> bool:
    """Return whether a command was done: a status other than 0 is not."""
    return ending.how == "done" and ending.answer in (0, "built", "resumed", "unchanged")


def _problems(work: Work, ending: Ending, out: Path, expected: dict[str, str]) -> list[str]:
    if not _finished(ending):
        return [f"not finished: {ending}"]
    return differences(work.seen(out), expected) + work.check(out)
