"""A lost scheduler is one error, from every method of the executor."""

import contextlib
import signal
import threading
import time

import pytest
from click.testing import CliRunner
from helpers.dask import dask_cluster
from helpers.factory import row_of_scenes

from geoprep.cli.commands import cli
from geoprep.errors import UsageError
from geoprep.executors import Dask
from geoprep.plan import probe

pytest.importorskip("distributed")

LOST = r"^the Dask scheduler at tcp://\S+ no longer answers\..* same command again to resume$"


def slow(x):
    time.sleep(0.1)
    return x


def repeat_survives(executor):
    for _ in range(1000):
        assert executor.survives(slow, 1)


CALLS = {
    "map_ordered": lambda executor: executor.map_ordered(slow, range(1000)),
    "map_unordered": lambda executor: list(executor.map_unordered(slow, range(1000))),
    "survives": repeat_survives,
}


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_a_lost_scheduler_is_one_error(tmp_path, call):
    with dask_cluster(tmp_path, workers=1) as cluster:
        executor = Dask.connect(cluster.address)
        with contextlib.closing(executor):
            threading.Timer(0.5, cluster.processes[0].send_signal, [signal.SIGKILL]).start()
            begun = time.monotonic()
            with pytest.raises(UsageError, match=LOST):
                CALLS[call](executor)
            assert time.monotonic() - begun < 10


@pytest.mark.slow
def test_a_scheduler_killed_while_a_plan_is_made_is_one_line(tmp_path, monkeypatch):
    row_of_scenes(tmp_path / "scenes", 40, 32, "uint8")
    with dask_cluster(tmp_path, workers=1) as cluster:
        monkeypatch.setattr(probe, "probe_scene", slow)
        connect = Dask.connect

        def connected(address):
            executor = connect(address)
            threading.Timer(0.5, cluster.processes[0].send_signal, [signal.SIGKILL]).start()
            return executor

        monkeypatch.setattr(Dask, "connect", connected)
        call = ["build-zarr", "--images", f"{tmp_path}/scenes/*.tif", "--quiet"]
        call += ["--out", str(tmp_path / "a.zarr"), "--scheduler", cluster.address]
        done = CliRunner().invoke(cli, call, standalone_mode=False)
    assert isinstance(done.exception, UsageError)
    assert "no longer answers" in str(done.exception)
    assert "\n" not in str(done.exception)
