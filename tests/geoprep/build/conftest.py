"""Tests of builds."""

import os

import pytest


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    """These tests are about what is written, not about when it is safe."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
