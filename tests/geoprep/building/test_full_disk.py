"""A disk that fills up, and a person who presses Ctrl-C."""

import shutil
import threading

import numpy as np
import pytest
from helpers.crashes import OPTIONS, Builder
from helpers.disks import enlarge, small_disk
from helpers.factory import plan_of, tree_digest, write_scene

from geoprep.building.run import build
from geoprep.errors import OutputError
from geoprep.executors.threads import Threads


def partials(folder):
    return list(folder.rglob("*.partial"))


@pytest.fixture
def disk(tmp_path):
    """Return a file system of 200 kB of its own."""
    with small_disk(tmp_path / "disk", 200) as folder:
        yield folder


def test_a_full_disk_says_so_and_costs_nothing_that_was_finished(killable, disk):
    (scenes, _, expected, _), out = killable, disk / "a.zarr"
    told = r"a\.zarr cannot be written: no space left on the disk.*again"
    with pytest.raises(OutputError, match=told):
        build(plan_of(scenes, **OPTIONS), out, Threads(2))
    assert not partials(disk), "what was half written was taken away again"
    kept = [path for path in disk.rglob("c/*/0/0/0") if path.is_file()]
    assert kept, "the test is about a disk that fills up in the middle"
    enlarge(disk, 20 * 1024)
    assert build(plan_of(scenes, **OPTIONS), out, Threads(2)).state == "resumed"
    assert tree_digest(out) == expected
    assert not (disk / "a.zarr.build").exists()


@pytest.mark.slow
def test_a_disk_may_be_full_at_any_change_of_a_file(killable, tmp_path):
    _, builder, expected, events = killable
    for at in range(1, events - 8, 331):  # the last few only take the journal away
        out = tmp_path / f"{at}.zarr"
        ending = builder.build(out, full_at=at)
        if not ending.error and at > ending.events - 9:
            break  # threads that race for a folder made fewer changes than the first time
        assert ending.error == "OutputError", (at, ending)
        assert "no space left" in ending.message
        ending = builder.build(out)
        assert not ending.error, (at, ending)
        assert tree_digest(out) == expected
        shutil.rmtree(out)


@pytest.mark.parametrize("at", [0, 7])
def test_an_interrupt_leaves_no_threads_and_a_store_to_carry_on_with(killable, tmp_path, at):
    scenes, _, expected, _ = killable
    out, seen = tmp_path / "a.zarr", []
    before = set(threading.enumerate())  # pools of other tests

    def interrupt(progress):
        seen.append(progress)
        if len(seen) > at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(plan_of(scenes, **OPTIONS), out, Threads(3), report=interrupt)
    started = set(threading.enumerate()) - before
    assert not [thread for thread in started if thread.name.startswith("ThreadPoolExecutor")]
    assert not partials(tmp_path)
    summary = build(plan_of(scenes, **OPTIONS), out, Threads(3))
    assert summary.state == ("resumed" if at >= 7 else "built"), "six surveys, the start, a shard"
    assert tree_digest(out) == expected


# Memory


@pytest.mark.slow
def test_three_times_the_scenes_need_no_more_memory(tmp_path):
    """Each scene has as many different values as a histogram can have."""
    peaks, rng = [], np.random.default_rng(0)
    noise = rng.integers(1, 65536, (18, 200, 200, 3)).astype(np.uint16)
    scenes = [write_scene(tmp_path, f"noise_{i}", each) for i, each in enumerate(noise)]
    with Builder(scenes, tile=100, rescale="city") as builder:
        for count in (6, 18):
            ending = builder.build(tmp_path / f"{count}.zarr", scenes=count)
            assert ending.state == "built", ending
            peaks.append(ending.peak)
    # Single runs of one build differ by some megabytes; 12 histograms would be 190.
    assert peaks[1] - peaks[0] < 48e6, [f"{peak / 1e6:.0f} MB" for peak in peaks]
