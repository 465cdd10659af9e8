"""Tests of builds."""

import os

import pytest
from helpers.crashes import OPTIONS, Builder
from helpers.factory import row_of_scenes, texture, tree_digest, write_scene


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    """These tests are about what is written, not about when it is safe."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def killable(tmp_path_factory):
    """Return scenes, a builder of their store, what it must look like, and its number of events."""
    folder = tmp_path_factory.mktemp("killable")
    scenes = row_of_scenes(folder / "scenes", 6, [(96, 96), (64, 80)], "uint16")
    scenes.append(write_scene(folder / "scenes", "floats", texture(96, 96).astype("complex64")))
    with Builder(scenes, **OPTIONS) as builder:
        ending = builder.build(folder / "whole.zarr")
        assert ending.state == "built", ending
        yield scenes, builder, tree_digest(folder / "whole.zarr"), ending.events
