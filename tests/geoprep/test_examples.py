"""Examples in docstrings run and give what they show."""

import doctest
import importlib
from pathlib import Path

import pytest

import geoprep

ROOT = Path(geoprep.__file__).parent
MODULES = [
    path for path in sorted(ROOT.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_give_what_they_show(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
    results = doctest.testmod(
        importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE, verbose=False
    )
    assert not results.failed
