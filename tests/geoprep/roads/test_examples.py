"""Test that the examples of docstrings run and print what they show."""

import doctest
from importlib import import_module

import pytest


@pytest.mark.parametrize(
    "module",
    ["graph", "network", "centrelines.cover", "centrelines.opening", "centrelines.thinning"],
)
def test_examples_of_docstrings_run(module):
    result = doctest.testmod(import_module(f"geoprep.roads.{module}"))
    assert result.attempted
    assert not result.failed
