"""Fixtures shared by all tests."""

import sys
from pathlib import Path

import pytest
from hypothesis import settings

# First calls compile kernels and load PROJ's database: no property is about their time.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

REPO = Path(__file__).resolve().parents[1]

# Processes that tests start by spawn import the test by its name. Last, so that the packages under
# test are the installed ones where they are installed.
sys.path.append(str(REPO))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real SpaceNet samples, or skip: the project never depends on it."""
    folder = REPO.parent / "shared" / "data"
    if not (folder / "AOI_2_Vegas").is_dir():
        pytest.skip(f"real sample data not present at {folder}")
    return folder
