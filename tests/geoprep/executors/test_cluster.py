"""A lost scheduler is one error, from every method of the executor."""

import contextlib
import os
import signal
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers.buckets import client_of, s3_endpoint, use_endpoint
from helpers.dask import dask_cluster
from helpers.factory import row_of_scenes, tree_digest

from geoprep.cli.commands import cli
from geoprep.errors import UsageError
from geoprep.executors.cluster import Dask

pytest.importorskip("distributed")

LOST = r"^the Dask scheduler at tcp://\S+ no longer answers\..* same command again to resume$"


def kill(process, x):
    """A task that kills the scheduler, whose process it is given."""
    os.kill(process, signal.SIGKILL)
    return x


@pytest.mark.slow
def test_a_lost_scheduler_is_one_error(tmp_path):
    with dask_cluster(tmp_path, workers=1) as cluster:
        executor = Dask.connect(cluster.address)
        task = partial(kill, cluster.processes[0].pid)
        with contextlib.closing(executor), pytest.raises(UsageError, match=LOST):
            list(executor.map_unordered(task, range(1000)))


@pytest.mark.slow
def test_workers_read_images_in_a_bucket_to_the_same_bytes(tmp_path, monkeypatch):
    scenes = row_of_scenes(tmp_path / "scenes", 3, 384, "uint16")
    options = ["--tile", "64", "--rescale", "city", "--shard-tiles", "30", "--quiet"]
    local = ["build-zarr", "--images", f"{tmp_path}/scenes/*.tif", *options]
    with s3_endpoint("own") as endpoint:
        use_endpoint(monkeypatch, endpoint)
        for scene in scenes:
            body = Path(scene.image).read_bytes()
            client_of(endpoint).put_object(Bucket="own", Key=f"in/{scene.id}.tif", Body=body)
        with dask_cluster(tmp_path, workers=1) as cluster:
            call = ["build-zarr", "--images", "s3://own/in/*.tif", *options]
            call += ["--out", str(tmp_path / "a.zarr"), "--scheduler", cluster.address]
            done = CliRunner().invoke(cli, call, standalone_mode=False)
            assert done.exception is None, done.output
    CliRunner().invoke(cli, [*local, "--out", str(tmp_path / "b.zarr")], standalone_mode=False)
    assert tree_digest(tmp_path / "a.zarr") == tree_digest(tmp_path / "b.zarr")
