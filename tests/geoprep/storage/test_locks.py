"""Locks of folders."""

import fcntl
import shutil

import pytest

from geoprep.storage import LockHeldError, hold_lock


def test_a_lock_of_a_folder_that_was_removed_is_taken_again(tmp_path, monkeypatch):
    """Between opening and locking, the owner may finish and remove what we are about to lock."""
    folder, flock = tmp_path / "folder", fcntl.flock

    def removed_first(file, how):
        monkeypatch.setattr(fcntl, "flock", flock)
        shutil.rmtree(folder)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    with hold_lock(folder / "lock"), pytest.raises(LockHeldError):
        hold_lock(folder / "lock")
