"""Fixtures shared by all tests."""

from pathlib import Path

import pytest
from hypothesis import settings

# First calls compile kernels and load PROJ's database: no property is about their time.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

REPO = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real SpaceNet samples, or skip: the project never depends on it."""
    folder = REPO.parent / "shared" / "data"
    if not (folder / "AOI_2_Vegas").is_dir():
        pytest.skip(f"real sample data not present at {folder}")
    return folder
