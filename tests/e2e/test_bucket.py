"""Cities from a bucket and stores in one, as a user meets them: no disk between the commands."""

import json
import re
import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.buckets import client_of, s3_endpoint, use_endpoint
from helpers.factory import tree_digest
from helpers.rasters import write_raster

from geoprep.building.options import BuildOptions
from geoprep.building.scene import describe_scene
from geoprep.cli.commands import cli
from geoprep.errors import UsageError
from geoprep.imagery.description import NOTHING_STATED
from geoprep.sources.cities import BUCKET, CITIES
from geoprep.sources.scene import Scene
from geoprep.storage.inputs import open_header, open_image
from geoprep.storage.places import Files
from geoprep.store.reader import StoreReader
from geoprep.synth import synthesise

MOSCOW = CITIES["moscow"]
STORE = "s3://own/two.zarr"
BOTH = ["--city", "moscow", "--city", "mumbai"]


@pytest.fixture(scope="module")
def endpoint():
    with s3_endpoint("own", BUCKET) as address:
        yield address


@pytest.fixture(scope="module")
def cities(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cities")
    for name in ("moscow", "mumbai"):
        synthesise(folder, CITIES[name], scenes=4, seed=1, size=400)
    return folder


@pytest.fixture
def s3(endpoint, monkeypatch):
    use_endpoint(monkeypatch, endpoint)
    return endpoint


def geoprep(*words, status=0):
    done = CliRunner().invoke(cli, [str(word) for word in words], standalone_mode=False)
    assert done.exception is None, (words, done.output, done.exception)
    assert (done.return_value or 0) == status, (words, done.output)
    return done


@pytest.fixture(scope="module")
def built(endpoint, cities, tmp_path_factory):
    """Return the same two cities on the disk; the store in the bucket is `STORE`."""
    local = tmp_path_factory.mktemp("store") / "two.zarr"
    with pytest.MonkeyPatch.context() as patch:
        use_endpoint(patch, endpoint)
        for out in (STORE, local):
            said = geoprep("build-zarr", *BOTH, "--source", cities, "--tile", "200", "--out", out)
            assert "8 ok" in said.output
    return local


def test_a_store_in_a_bucket_is_looked_at_as_any_other(s3, built, tmp_path):
    facts = json.loads(geoprep("info", STORE, "--json").stdout)
    here = json.loads(geoprep("info", built, "--json").stdout)
    assert {k for k, v in facts.items() if here[k] != v} <= {"store", "path"}
    assert "32 tiles" in geoprep("info", STORE).stdout
    assert "intact" in geoprep("verify", STORE).stdout
    geoprep("preview", STORE, "--out", tmp_path / "two.html")
    page, names = (tmp_path / "two.html").read_text(), StoreReader.open(built).scenes.id
    assert all(name in page for name in names)
    for store, folder in ((STORE, "tifs"), (built, "same")):
        geoprep("export", store, "--scene", ",".join(names[::4]), "--out", tmp_path / folder)
    written = sorted(path.name for path in (tmp_path / "tifs").glob("*.tif"))
    assert len(written) == 4
    for name in written:
        a, b = (tmp_path / folder / name for folder in ("tifs", "same"))
        assert a.read_bytes() == b.read_bytes()


def test_the_block_of_the_tutorial_runs(s3, cities, tmp_path, monkeypatch, capsys):
    page = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "cluster-bucket.md"
    (block,) = re.findall(r"```python bucket\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(cities)
    exec(block, {})
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "True"
    assert "torch.Size([2, 3, 64, 64])" in said[1:]


@pytest.mark.slow
def test_training_from_a_bucket_resumes(s3, built, tmp_path, here, short_runs):
    model = ["--model", "helpers.tiny:build", "--quiet"]
    common = ["--device", "cpu", "--compile", "off", "--threads", "1"]
    common += ["--crop", "64", "--crops-per-tile", "1", "--batch-size", "6", "--pictures", "0"]
    done = here("geoprep", "fit", STORE, *common, *model, "--epochs", "1", folder=tmp_path)
    assert f"data         {STORE}" in done.stdout
    assert "epoch 1/1  loss" in done.stdout
    again = here("geoprep", "fit", "--resume", "runs/two", *model, "--epochs", "2", folder=tmp_path)
    assert "epoch 2/2  loss" in again.stdout


# From the public bucket's layout to a store


@pytest.fixture
def public(s3, cities, monkeypatch):
    """Serve Moscow as the public bucket does, to somebody without an account."""
    use_endpoint(monkeypatch, s3, keys={})
    for path in (cities / MOSCOW.aoi).rglob("*.*"):
        _publish(s3, f"{MOSCOW.folder}{path.relative_to(cities / MOSCOW.aoi)}", path.read_bytes())
    return s3


def _publish(endpoint, key, body):
    client_of(endpoint).put_object(Bucket=BUCKET, Key=key, Body=body, ACL="public-read")


def test_a_city_is_downloaded_and_built(public, cities, tmp_path):
    ask = ["download", "--city", "moscow", "--out", tmp_path / "data"]
    said = geoprep(*ask, "--dry-run").stdout
    files = [path for path in (cities / MOSCOW.aoi).rglob("*.*") if path.name != "synth.json"]
    size = sum(path.stat().st_size for path in files)
    megabytes = size // 10**6
    assert megabytes
    assert f"{len(files)} objects, {size / 1e9:.3f} GB" in said
    assert not (tmp_path / "data").exists()
    done = geoprep(*ask)
    assert "0 files downloaded, 8 already there" in geoprep(*ask).stdout
    assert re.search(rf"downloading, MB .* {megabytes}/{megabytes} .* left 0:00:0", done.stderr)
    source = re.search(r"next: geoprep (build-zarr .*)", done.stdout)[1].split()
    rehearsed = geoprep(*source, "--dry-run").stdout
    assert "4 (0 without a label)" in rehearsed
    assert "4 ok" in geoprep(*source, "--out", tmp_path / "a.zarr").stdout
    for name, place in (("b", cities), ("c", f"s3://{BUCKET}")):
        there = ["--source", place, "--out", tmp_path / f"{name}.zarr"]
        geoprep("build-zarr", "--city", "moscow", *there)
    wanted = tree_digest(tmp_path / "a.zarr")
    assert tree_digest(tmp_path / "b.zarr") == tree_digest(tmp_path / "c.zarr") == wanted


# Remote images and masks


def test_a_dry_run_reads_only_the_headers_of_remote_images(s3, tmp_path):
    pixels = np.random.default_rng(0).integers(1, 255, (3, 2600, 2600), np.uint8)
    body = write_raster(tmp_path / "a.tif", pixels, tiled=True).read_bytes()
    client_of(s3).put_object(Bucket="own", Key="large/a.tif", Body=body)
    address = "s3://own/large/a.tif"
    with open_header(address) as header, open_image(address) as whole:
        assert header.shape == whole.shape
        assert header.transform == whole.transform
        assert header.crs == whole.crs
    real = Files.read_range
    with mock.patch.object(Files, "read_range", autospec=True, side_effect=real) as read:
        with open_header(address) as header:
            assert header.dtypes == ("uint8",) * 3
        assert sum(call.args[3] - call.args[2] for call in read.mock_calls) < len(body) / 10
    never = mock.Mock(side_effect=AssertionError("read whole"))
    with mock.patch("geoprep.storage.inputs.read_object", never):
        found = Scene("a", address, None), 0, None, NOTHING_STATED
        assert not describe_scene(found, BuildOptions(), read_inputs=False).failure


# Synthetic and real scenes


def test_real_and_synthetic_scenes_never_share_a_folder(public, cities, tmp_path):
    done = CliRunner().invoke(cli, ["download", "--city", "moscow", "--out", str(cities)])
    assert isinstance(done.exception, UsageError)
    assert re.search(
        r"AOI_7_Moscow holds a synthetic city .*synth\.json.*--out", str(done.exception)
    )
    real = tmp_path / "real"
    geoprep("download", "--city", "moscow", "--out", real, "--scenes", "2", "--quiet")
    synth = ["synth", "--city", "moscow", "--scenes", "1", "--size", "64", "--out", str(real)]
    done = CliRunner().invoke(cli, synth)
    assert isinstance(done.exception, UsageError)
    assert "not synthetic" in str(done.exception)
    assert not list(real.rglob("synth.json"))


def test_a_build_says_that_its_source_is_synthetic_and_refuses_a_mixture(public, cities, tmp_path):
    build = ["build-zarr", "--city", "moscow", "--out", tmp_path / "a.zarr", "--source"]
    assert "is synthetic (made by geoprep synth)" in geoprep(*build, cities).output
    mixed = tmp_path / "mixed"
    geoprep("download", "--city", "moscow", "--out", mixed / "real", "--scenes", "1", "--quiet")
    drawn = next((cities / MOSCOW.aoi / "PS-RGB").glob("*chip3.tif"), None)
    drawn = drawn or sorted((cities / MOSCOW.aoi / "PS-RGB").glob("*.tif"))[-1]
    (mixed / "drawn" / MOSCOW.aoi / "PS-RGB").mkdir(parents=True)
    shutil.copy(drawn, mixed / "drawn" / MOSCOW.aoi / "PS-RGB")
    shutil.copy(cities / MOSCOW.aoi / "synth.json", mixed / "drawn" / MOSCOW.aoi)
    done = CliRunner().invoke(cli, [*map(str, build[:-2]), "b.zarr", "--source", str(mixed)])
    assert "synthetic scenes" in str(done.exception)
    assert "and real ones" in str(done.exception)
