"""The frozen files are read, built and continued from as when they were recorded."""

import json
import re
import shutil
from pathlib import Path

import pytest
from helpers import freeze

VALUES = json.loads(freeze.VALUES.read_text())


@pytest.fixture
def unpacked(tmp_path, monkeypatch, short_runs):
    """Work in a folder that holds the files."""
    shutil.unpack_archive(freeze.FILES, tmp_path)
    monkeypatch.chdir(tmp_path)


def assert_recorded(found, tolerance):
    for name, values in found.items():
        wanted = [pytest.approx(v, rel=tolerance) if type(v) is float else v for v in VALUES[name]]
        assert values == wanted, name


def test_reading_gives_the_recorded_values(unpacked):
    assert_recorded(freeze.read(), 1e-6)


def test_a_run_resumes_and_a_model_predicts_as_recorded(unpacked):
    """The floating point of another processor gives other bits."""
    assert_recorded(freeze.use(), 0.02)


def test_a_build_from_the_images_gives_the_same_bytes(unpacked):
    freeze.build("again.zarr")
    assert files_of("again.zarr") == files_of("city.zarr")


def files_of(store):
    """Return the files of a store without the version that wrote them and digests that hold it."""
    files = {p.relative_to(store): p.read_bytes() for p in Path(store).rglob("*") if p.is_file()}
    assert files
    attributes = rb'"(?:version|meta)":\s*"[^"]*"'
    return {
        name: re.sub(attributes, b"", data) if name.name == "zarr.json" else data
        for name, data in files.items()
    }
