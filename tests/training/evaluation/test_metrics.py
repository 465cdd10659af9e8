"""Metrics equal their definitions, whatever the batches and ranks."""

import math
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.predict_cases import FACTS
from torch.overrides import TorchFunctionMode

from geoprep.speed import BIN_TABLE
from training.data import class_speeds
from training.evaluation.metrics import (
    BIN_NAMES,
    ClassMetrics,
    RoadMetrics,
    speed_mph,
)
from training.evaluation.validation import CountedOnce
from training.runners.decoding import label_bytes

MPH = (5.0, 15.0, 25.0, 35.0, 45.0, 55.0, 65.0)


def draw(n=3, side=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    speeds = torch.tensor([0, 0, 0, 15, 20, 25, 45, 255], dtype=torch.uint8)
    speed = speeds[torch.randint(0, 8, (n, side, side), generator=generator)]
    return torch.randn(n, 8, side, side, generator=generator).sigmoid(), speed


def measured(probability, speed, targets="bins", group=None, **options):
    """Return metrics of one batch."""
    metrics = RoadMetrics(targets, MPH, **options)
    metrics.update(probability, speed, group)
    return metrics


class Host(torch.Tensor):
    """A tensor that came from a device."""


class NoDouble(TorchFunctionMode):
    """As on some devices: no fp64, except in tensors that ``cpu`` brought to the host."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.Tensor.cpu:
            return result.as_subclass(Host)
        if isinstance(result, torch.Tensor) and not isinstance(result, Host):
            assert result.dtype != torch.float64, func
        return result


@pytest.mark.parametrize("targets", ["bins", "binary", "classes"])
def test_there_is_no_fp64_on_the_device(targets):
    found = []
    for mode in (nullcontext(), NoDouble()):
        with mode:
            if targets == "classes":
                metrics = ClassMetrics("abcdefgh", groups=3)
            else:
                metrics = RoadMetrics(targets, MPH, groups=3)
            for seed in range(2):
                probability, speed = draw(seed=seed)
                metrics.update(probability, speed, torch.arange(3))
            found.append(str([metrics.compute(), metrics.by_group()]))
    assert found[0] == found[1]


def by_hand(probability, speed):
    """The same figures from their definitions, pixel sets in NumPy."""
    valid = speed.numpy() != 255
    truth = BIN_TABLE[speed.numpy()][valid].astype(int)
    road = (probability[:, 7] >= 0.5).numpy()
    likeliest = probability[:, :7].numpy().argmax(axis=1)
    found = np.where(road, likeliest + 1, 0)[valid]
    hit = ((truth > 0) & (found > 0)).sum()
    either = ((truth > 0) | (found > 0)).sum()
    result = {
        "road_iou": hit / either,
        "road_f1": 2 * hit / ((truth > 0).sum() + (found > 0).sum()),
    }
    for number, name in enumerate(BIN_NAMES, start=1):
        union = ((truth == number) | (found == number)).sum()
        result[name] = ((truth == number) & (found == number)).sum() / union if union else math.nan
    mph = np.array(MPH)[likeliest][valid]
    result["speed_mae_mph"] = np.abs(mph - speed.numpy()[valid])[truth > 0].mean()
    return result


def test_metrics_follow_their_definitions():
    probability, speed = draw()
    found, wanted = measured(probability, speed).compute(), by_hand(probability, speed)
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, rel=1e-3, nan_ok=True), name
    there = [found[BIN_NAMES[i]] for i in (1, 2, 4)]  # 15 and 20, 25, 45 mph
    assert found["bin_iou"] == pytest.approx(np.mean(there))


def test_batches_and_ranks_add_up_exactly():
    probability, speed = draw(n=6)
    whole, parts = measured(probability, speed), [RoadMetrics("bins", MPH) for _ in range(2)]
    for i in range(6):
        parts[i % 2].update(probability[i : i + 1], speed[i : i + 1])
    for one, other in zip(parts[0].counts(), parts[1].counts(), strict=True):
        one += other  # what ranks do
    assert parts[0].compute() == pytest.approx(whole.compute(), rel=0, abs=0, nan_ok=True)


def test_metrics_of_binary_targets():
    _, speed = draw()
    road = (speed > 0) & (speed < 255)
    found = measured(torch.where(road, 0.9, 0.1)[:, None], speed, "binary").compute()
    assert found["road_iou"] == 1
    assert "speed_mae_mph" not in found


def test_roads_of_unknown_speed_are_roads_to_binary_targets_and_left_out_of_others():
    probability, speed = draw()
    unknown = torch.where((speed > 0) & (speed < 255), torch.tensor(254, dtype=torch.uint8), speed)
    one, other = (measured(probability[:, 7:], label, "binary") for label in (speed, unknown))
    assert one.compute() == other.compute()
    some, without = unknown.clone(), unknown.clone()
    some[0], without[0] = speed[0], speed[0]
    without[without == 254] = 255
    one, other = (measured(probability, label) for label in (some, without))
    assert one.compute() == pytest.approx(other.compute(), nan_ok=True)


def test_metrics_without_pixels_are_nan():
    nothing = torch.full((1, 4, 4), 255, dtype=torch.uint8)
    found = measured(torch.zeros(1, 8, 4, 4), nothing).compute()
    assert all(math.isnan(value) for value in found.values())


def test_speed_is_that_of_the_most_probable_bin():
    probability = torch.full((1, 8, 1, 3), 0.01)
    probability[0, 5, 0, 0] = 0.6
    probability[0, 3, 0, :2] = 0.55  # a close second
    assert speed_mph(probability, MPH)[0, 0, :2].tolist() == [55, 35]
    probability[0, 7, 0] = torch.tensor([0.5, 0.49, torch.nan])
    found = label_bytes(probability, replace(FACTS, class_mph=MPH), 0.5)
    assert found[0, 0].tolist() == [55, 0, 255]


def test_nan_is_neither_road_nor_background():
    probability, speed = draw()
    probability[0, 4] = torch.nan
    part, whole = measured(probability, speed), measured(probability[1:], speed[1:])
    assert part.compute() == pytest.approx(whole.compute(), nan_ok=True)
    assert int(part.lost) == int((speed[0] != 255).sum())


def test_groups_are_counted_separately_and_together():
    probability, speed = draw(n=4)
    grouped = measured(probability, speed, group=torch.tensor([2, 0, 2, 2]), groups=3)
    whole, first = measured(probability, speed), measured(probability[1:2], speed[1:2])
    together, alone = grouped.compute(), whole.compute()
    for name in ("threshold", "threshold_low", "threshold_high"):  # chosen by groups
        del together[name], alone[name]
    assert together == pytest.approx(alone, nan_ok=True)
    by_group = grouped.by_group()
    wanted = first.compute()
    assert by_group[0] == pytest.approx({k: wanted[k] for k in by_group[0]}, nan_ok=True)
    assert all(math.isnan(value) for value in by_group[1].values())


@pytest.mark.parametrize("targets", ["bins", "binary"])
def test_the_best_threshold_is_found_by_trying_all(targets):
    _, speed = draw(side=40)
    truth = (speed > 0) & (speed != 255)
    random = torch.Generator().manual_seed(4)
    score = (torch.rand(3, 40, 40, generator=random) * 0.5 + 0.2 * truth).clamp(0, 1)
    probability = score[:, None].expand(-1, 8 if targets == "bins" else 1, -1, -1)
    metric = measured(probability, speed, targets)
    found = metric.compute()

    def iou(threshold):
        return measured(probability, speed, targets, threshold=threshold).compute()["road_iou"]

    steps = [0, 1, 30, 64, 90, 110, 127, 128, 150, 200, 255]
    sweep = metric.sweep()
    swept = sweep["road_iou"]
    assert swept[steps].tolist() == pytest.approx([iou(k / 256) for k in steps])
    assert found["best_road_iou"] == pytest.approx(max(swept.tolist()))
    assert iou(found["best_threshold"]) == pytest.approx(found["best_road_iou"])
    assert found["road_iou"] == pytest.approx(iou(0.5))
    said = score >= 0.5
    precision, recall = (sweep[name][128].item() for name in ("precision", "recall"))
    known = speed != 255
    assert precision == pytest.approx((truth & said).sum() / (said & known).sum(), nan_ok=True)
    assert recall == pytest.approx(((truth & said).sum() / truth.sum()).item())


def test_bin_speeds_are_means_of_their_pixels():
    class Counted:
        histogram_speed = np.zeros(256, np.uint64)

    Counted.histogram_speed[[0, 20, 25, 255]] = (900, 10, 30, 7)
    speeds = class_speeds([Counted(), Counted()])
    assert speeds == (5.5, 20.0, 25.0, 35.5, 45.5, 55.5, 65.5)


@pytest.mark.parametrize("seed", range(8))
def test_a_pixel_of_a_scene_counts_once_for_the_nearest_tile(seed):
    """Tiles of two scenes at random places, with neighbours left out, at a coarser level."""
    random, finest = np.random.default_rng(seed), 32
    corners = 4 * random.integers(0, 16, (9, 2))
    table = np.zeros(9, [("store", "u2"), ("scene", "u4"), ("row", "u4"), ("col", "u4")])
    table["row"], table["col"] = corners.T
    table["scene"] = np.arange(9) % 2
    loader = SimpleNamespace(
        tiles=SimpleNamespace(table=table, origin=SimpleNamespace(finest=[finest]))
    )
    once, side = CountedOnce(loader), 8
    scale = finest // side
    for scene in (0, 1):
        owner = {}
        for tile in np.flatnonzero(table["scene"] == scene).tolist():
            for y, x in np.ndindex(side, side):
                place = corners[tile] // scale + (y, x)
                off = np.square(2 * place + 1 - 2 * corners[tile] // scale - side).sum()
                owner.setdefault(tuple(place), []).append((off, tile))
        for tile in np.flatnonzero(table["scene"] == scene).tolist():
            mask = once.mask(tile, side)
            for y, x in np.ndindex(side, side):
                place = tuple(corners[tile] // scale + (y, x))
                assert mask[y, x] == (min(owner[place])[1] == tile)
    index, label = torch.arange(9), torch.ones(9, side, side, dtype=torch.uint8)
    masks = np.stack([once.mask(tile, side) for tile in range(9)])
    assert torch.equal(once(index, label) != 255, torch.from_numpy(masks))
