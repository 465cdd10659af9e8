"""Runs of `training.fit` compared, as their files hold them."""

import csv
import math
import os
import signal

import torch

from helpers.steps import SAMPLES
from training.checkpoint import load

SMALL = ("--model", "helpers.tiny:build")
STAGED = (*SMALL, "--crops-per-tile", "1", "--batch-size", "4")
KEYWORDS = {"model": "helpers.tiny:build", "crop": 32, "crops_per_tile": 1, "batch_size": 2}
KEYWORDS |= {"device": "cpu", "compile": "off", "threads": 1, "loader_threads": 1, "epochs": 1}
"""A run of one epoch, for functions."""
STATEFUL = ("--model", "helpers.tiny:normed", *SAMPLES)


def rows(folder):
    """Return the rows of metrics.csv without columns of time."""
    with (folder / "metrics.csv").open(newline="") as file:
        timing = ("images_per_s", "data_wait", "seconds")
        return [{k: v for k, v in row.items() if k not in timing} for row in csv.DictReader(file)]


def same(a, b):
    """Return whether nested plain values and tensors are bit-equal."""
    if isinstance(a, torch.Tensor):
        return (
            torch.equal(a, b)
            if not a.is_floating_point()
            else torch.equal(a.nan_to_num(), b.nan_to_num())
        )
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


def assert_same_run(one, other):
    a, b = load(one), load(other)
    assert same(a.model, b.model)
    assert same(a.ema, b.ema)
    assert same(a.optimizer, b.optimizer)
    assert same(a.rng, b.rng)
    assert a.scaler == b.scaler
    assert same(a.loader, b.loader)
    assert a.progress["step"] == b.progress["step"]
    assert rows(one) == rows(other)
    assert same(load(one / "best.pt").model, load(other / "best.pt").model)


def signal_self():
    os.kill(os.getpid(), signal.SIGINT)
