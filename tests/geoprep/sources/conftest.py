"""Empty files, for tests of names."""

import pytest


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Return a function that makes empty files below the working folder."""
    monkeypatch.chdir(tmp_path)

    def files(*names):
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        return tmp_path

    return files
