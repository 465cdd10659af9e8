"""Test what ``make dist`` has built, before its wheel runs the quickstart of the README."""

import tarfile
import zipfile
from pathlib import Path

import pytest

import geoprep

REPO = Path(__file__).resolve().parents[2]
PACKAGES = {"geoprep", "loaders", "training"}


def built(pattern):
    """Return the file in dist/, or skip: only ``make dist`` builds one."""
    found = list((REPO / "dist").glob(pattern))
    if not found:
        pytest.skip("nothing is built: make dist")
    (path,) = found
    assert f"geoprep-{geoprep.__version__}" in path.name
    return path


def test_the_wheel_has_the_packages_and_nothing_else():
    names = zipfile.ZipFile(built("*.whl")).namelist()
    info = f"geoprep-{geoprep.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {*PACKAGES, info}
    assert f"{info}/licenses/LICENSE" in names
    for package in PACKAGES:
        files = [path for path in (REPO / package).rglob("*") if path.is_file()]
        wanted = {str(p.relative_to(REPO)) for p in files if "__pycache__" not in p.parts}
        assert wanted == {name for name in names if name.startswith(f"{package}/")}
        assert f"{package}/py.typed" in wanted


def test_the_source_archive_has_what_its_tests_need():
    with tarfile.open(built("*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "Makefile", "constraints.txt"} <= names
    assert {"tests/conftest.py", "tests/data/public_api.txt", "docs/conf.py"} <= names
    assert not [name for name in names if name.startswith((".venv", "build/", "demo/", "dist/"))]
