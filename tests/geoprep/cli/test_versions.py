"""Test what a report of a bug needs."""

import sys
from importlib.metadata import version

import pytest
from click.testing import CliRunner

import geoprep
from geoprep.cli import versions
from geoprep.cli.commands import cli


def printed(*options):
    done = CliRunner().invoke(cli, [*options])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("options", [("--version", "--verbose"), ("--verbose", "--version")])
def test_verbose_versions_name_libraries_processor_and_torch(monkeypatch, options):
    monkeypatch.setattr(versions, "instruction_sets", lambda: ("AVX2", "AMX_BF16"))
    rows = dict(line.split(None, 1) for line in printed(*options).splitlines())
    assert rows["geoprep"] == geoprep.__version__
    assert rows["zarr"] == version("zarr")
    # Builds for CUDA have a suffix that their metadata lacks.
    assert rows["torch"].startswith(version("torch"))
    assert " with " in rows["torch"]
    assert rows["processor"].endswith("cores, AVX2, AMX_BF16")
    assert {"Python", "GDAL", "PROJ", "GEOS"} <= set(rows)


def test_a_torch_that_cannot_be_imported_is_reported(monkeypatch, tmp_path):
    broken = tmp_path / "python"
    broken.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'raise ImportError(\"no libc10\")'\n")
    broken.chmod(0o755)
    monkeypatch.setattr(versions.sys, "executable", str(broken))
    assert "which cannot be imported: ImportError: no libc10" in printed("--version", "--verbose")


def test_a_package_that_is_missing_is_said(monkeypatch):
    monkeypatch.setattr(versions, "PACKAGES", ("no-such-package",))
    assert "no-such-package not installed" in printed("--version", "--verbose")
