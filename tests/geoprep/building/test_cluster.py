"""Builds on a real Dask cluster: the bytes of a local build."""

import contextlib
import itertools
import os
import signal

import pytest
from click.testing import CliRunner
from helpers.dask import dask_cluster
from helpers.factory import build_of, plan_of, row_of_scenes, texture, tree_digest, write_scene

from geoprep.building import run, tile_run
from geoprep.building.run import build
from geoprep.cli.commands import cli
from geoprep.errors import UsageError
from geoprep.executors.cluster import PER_THREAD, Dask
from geoprep.store.reader import StoreReader

pytest.importorskip("distributed")

OPTIONS = {"tile": 32, "shard_tiles": 4, "rescale": "city"}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Return scenes, one of which cannot be read, and the files of their store."""
    folder = tmp_path_factory.mktemp("world")
    scenes = row_of_scenes(folder / "scenes", 8, 64, "uint16")
    broken = write_scene(folder / "scenes", "torn", texture(64, 64).astype("uint16"))
    with open(broken.image, "r+b") as file:  # noqa: PTH123 - in place
        file.seek(300)
        file.write(b"\xff" * 4000)
    scenes.append(broken)
    build_of(folder / "a.zarr", scenes, **OPTIONS)
    return scenes, tree_digest(folder / "a.zarr")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with dask_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def fragile(tmp_path_factory):
    """Return a cluster that gives a task up with the first worker that dies over it."""
    with dask_cluster(tmp_path_factory.mktemp("fragile"), workers=1, failures=0) as running:
        yield running


@pytest.fixture
def executor(cluster):
    one = Dask.connect(cluster.address)
    yield one
    one.close()


def reasons(store):
    """Return why scenes failed, by their names."""
    table = StoreReader.open(store).scenes
    return {name: why for name, why in zip(table.id, table.reason, strict=True) if why}


def double(x):
    return 2 * x


def fail(x):
    raise ValueError(f"item {x}")


def test_all_results_are_there(executor):
    assert executor.workers == 2
    assert sorted(executor.map_unordered(double, range(30))) == [2 * x for x in range(30)]
    with pytest.raises(ValueError, match="item"):
        list(executor.map_unordered(fail, range(3)))


def outlines_kept():
    return len(tile_run._outlines._slots)


def test_outlines_of_roads_are_released_on_every_worker(executor, tmp_path):
    scene = write_scene(tmp_path, "wide", texture(96, 224))
    build(plan_of([scene], tile=32, shard_tiles=4), tmp_path / "a.zarr", executor)
    assert set(executor._client.run(outlines_kept).values()) == {0}


def test_few_items_are_in_flight(executor):
    taken = []
    items = (taken.append(item) or item for item in itertools.count())
    for count, _ in enumerate(executor.map_unordered(double, items), 1):
        assert len(taken) <= count + PER_THREAD * executor.workers
        if count == 20:
            break


def test_the_command_builds_the_same_bytes_on_a_cluster(world, cluster, tmp_path, monkeypatch):
    scenes, expected = world
    monkeypatch.chdir(os.path.dirname(scenes[0].image))  # noqa: PTH120 - a text
    call = ["build-zarr", "--images", "*.tif", "--labels", "*.geojson", "--tile", "32"]
    call += ["--shard-tiles", "4", "--rescale", "city", "--out", str(tmp_path / "a.zarr")]
    done = CliRunner().invoke(cli, [*call, "--quiet", "--scheduler", cluster.address])
    assert "2 threads of tcp://127.0.0.1" in done.stderr
    assert "/status" in done.stderr, "the dashboard's address"
    assert tree_digest(tmp_path / "a.zarr") == expected
    assert list(reasons(tmp_path / "a.zarr")) == ["torn"]


def test_a_worker_may_be_killed_in_mid_build(world, executor, tmp_path, monkeypatch):
    scenes, expected = world
    real, killed = run.shard_tasks, []

    def killing(*arguments):
        for count, task in enumerate(real(*arguments)):
            if count == 5:
                pids = executor._client.run(os.getpid)
                killed.append(min(pids.values()))
                os.kill(killed[0], signal.SIGKILL)
            yield task

    monkeypatch.setattr(run, "shard_tasks", killing)
    build(plan_of(scenes, **OPTIONS), tmp_path / "a.zarr", executor)
    assert killed
    assert tree_digest(tmp_path / "a.zarr") == expected


def end(x):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_task_that_ends_every_worker_is_one_line(fragile):
    with (
        contextlib.closing(Dask.connect(fragile.address)) as executor,
        pytest.raises(UsageError, match=r"died over one task .*to resume"),
    ):
        list(executor.map_unordered(end, range(1)))


def test_no_scheduler_and_no_workers_are_one_line(executor, monkeypatch):
    with monkeypatch.context() as hasty:
        hasty.setattr("geoprep.executors.cluster._CONNECTING", "1s")
        told = r"no Dask scheduler answers at tcp://127\.0\.0\.1:9 "
        with pytest.raises(UsageError, match=told) as e:
            Dask.connect("tcp://127.0.0.1:9")
    assert "\n" not in str(e.value)
    monkeypatch.setattr(executor._client, "get_versions", lambda **_: {"workers": {}})
    with pytest.raises(UsageError, match="has no workers: start some with `dask worker tcp://"):
        Dask(executor._client)


@pytest.mark.parametrize(
    ("place", "package"), [("worker", "geoprep"), ("worker", "numpy"), ("scheduler", "geoprep")]
)
def test_other_versions_anywhere_are_refused(executor, monkeypatch, place, package):
    real = executor._client.get_versions

    def other(**given):
        found = real(**given)
        one = found["scheduler"] if place == "scheduler" else next(iter(found["workers"].values()))
        one["packages"][package] = "0.0.1"
        return found

    monkeypatch.setattr(executor._client, "get_versions", other)
    with pytest.raises(UsageError, match=rf"{place} at tcp://.*{package} 0\.0\.1.* and here"):
        Dask(executor._client)


def test_threads_of_this_machine_are_not_asked_for_beside_a_scheduler():
    call = ["build-zarr", "--city", "moscow", "--workers", "2", "--scheduler", "tcp://h:1"]
    done = CliRunner().invoke(cli, call)
    assert "--workers are threads of this machine" in str(done.exception)
