"""Metrics equal their definitions, whatever the batches and ranks."""

import math

import numpy as np
import pytest
import torch

from geoprep.errors import UsageError
from geoprep.speed import BIN_TABLE
from training.decode import class_speeds, expected_mph
from training.metrics import RoadMetrics, bin_names

MPH = (5.0, 15.0, 25.0, 35.0, 45.0, 55.0, 65.0)


def draw(n=3, side=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    speeds = torch.tensor([0, 0, 0, 15, 20, 25, 45, 255], dtype=torch.uint8)
    speed = speeds[torch.randint(0, 8, (n, side, side), generator=generator)]
    return torch.randn(n, 8, side, side, generator=generator), speed


def by_hand(logits, speed):
    """The same figures from their definitions, pixel sets in NumPy."""
    valid = speed.numpy() != 255
    truth = BIN_TABLE[speed.numpy()][valid].astype(int)
    road = (logits[:, 7] > 0).numpy()
    found = np.where(road, logits[:, :7].argmax(dim=1).numpy() + 1, 0)[valid]
    hit = ((truth > 0) & (found > 0)).sum()
    either = ((truth > 0) | (found > 0)).sum()
    result = {
        "road_iou": hit / either,
        "road_f1": 2 * hit / ((truth > 0).sum() + (found > 0).sum()),
    }
    for number, name in enumerate(bin_names(), start=1):
        union = ((truth == number) | (found == number)).sum()
        result[name] = ((truth == number) & (found == number)).sum() / union if union else math.nan
    p = torch.sigmoid(logits[:, :7].double())
    mph = ((p * torch.tensor(MPH).view(1, 7, 1, 1)).sum(1) / p.sum(1)).numpy()[valid]
    result["speed_mae_mph"] = np.abs(mph - speed.numpy()[valid])[truth > 0].mean()
    return result


def computed(metric):
    return {name: value.item() for name, value in metric.compute().items()}


def test_figures_are_those_of_the_definitions():
    logits, speed = draw()
    metric = RoadMetrics("bins", MPH)
    metric.update(logits, speed)
    found, wanted = computed(metric), by_hand(logits, speed)
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, rel=1e-3, nan_ok=True), name
    there = [found[bin_names()[i]] for i in (1, 2, 4)]  # 15 and 20, 25, 45 mph
    assert found["bin_iou"] == pytest.approx(np.mean(there))


def test_batches_and_ranks_add_up_exactly():
    logits, speed = draw(n=6)
    whole, parts = RoadMetrics("bins", MPH), [RoadMetrics("bins", MPH) for _ in range(2)]
    whole.update(logits, speed)
    for i in range(6):
        parts[i % 2].update(logits[i : i + 1], speed[i : i + 1])
    # What torchmetrics does with states of several ranks under dist_reduce_fx="sum".
    for name in ("confusion", "error", "roads"):
        setattr(parts[0], name, getattr(parts[0], name) + getattr(parts[1], name))
    for name, value in whole.compute().items():
        assert torch.equal(parts[0].compute()[name].nan_to_num(-1), value.nan_to_num(-1)), name


def test_padding_and_unlabelled_pixels_do_not_count():
    logits, speed = draw()
    metric, padded = RoadMetrics("bins", MPH), RoadMetrics("bins", MPH)
    metric.update(logits, speed)
    wide = torch.nn.functional.pad(logits, (0, 16, 0, 16), value=9.0)
    wide[..., :16, :16][:, :, speed[0] == 255] = 5.0
    wide[..., :16, :16] = torch.where((speed == 255)[:, None], 7.0, logits)
    padded.update(wide, speed)
    assert computed(metric)["road_iou"] == computed(padded)["road_iou"]
    assert computed(metric)["speed_mae_mph"] == computed(padded)["speed_mae_mph"]


def test_a_perfect_prediction_is_perfect():
    _, speed = draw()
    bins = torch.from_numpy(BIN_TABLE.astype("int64"))[speed.int()]
    logits = torch.full((3, 8, 16, 16), -20.0)
    logits[:, :7].scatter_(1, (bins - 1).clamp_min(0)[:, None], 20.0)
    logits[:, 7] = torch.where(bins > 0, 20.0, -20.0)
    metric = RoadMetrics("bins", MPH)
    metric.update(logits, speed)
    found = computed(metric)
    assert found["road_iou"] == found["road_f1"] == found["bin_iou"] == 1
    assert found["speed_mae_mph"] < 5.1  # within the bin


@pytest.mark.parametrize("targets", ["binary", "continuous"])
def test_other_targets_judge_what_they_know(targets):
    _, speed = draw()
    road = (speed > 0) & (speed < 255)
    if targets == "binary":
        logits = torch.where(road, 4.0, -4.0)[:, None]
    else:
        logits = torch.logit((speed.float() * road / 65).clamp(1e-4, 0.999))[:, None]
    metric = RoadMetrics(targets)
    metric.update(logits, speed)
    found = computed(metric)
    assert found["road_iou"] == 1
    assert ("speed_mae_mph" in found) == (targets == "continuous")
    assert found.get("speed_mae_mph", 0) < 0.1


def test_nothing_to_judge_is_not_a_number():
    metric = RoadMetrics("bins", MPH)
    metric.update(torch.zeros(1, 8, 4, 4), torch.full((1, 4, 4), 255, dtype=torch.uint8))
    assert all(math.isnan(value) for value in computed(metric).values())


def test_unknown_targets_are_refused():
    with pytest.raises(UsageError, match="bins"):
        RoadMetrics("class")


def test_expected_speed_is_the_weighted_mean():
    logits = torch.full((1, 8, 1, 1), -30.0)
    logits[0, 1], logits[0, 3] = 30.0, 30.0
    assert expected_mph(logits, "bins", MPH).item() == pytest.approx(25)
    assert expected_mph(torch.full((1, 8, 1, 1), -200.0), "bins", MPH).isfinite().all()


def test_bins_stand_for_the_speeds_their_pixels_have():
    class Counted:
        histogram_speed = np.zeros(256, np.uint64)

    Counted.histogram_speed[[0, 20, 25, 255]] = (900, 10, 30, 7)
    speeds = class_speeds([Counted(), Counted()])
    assert speeds == (5.5, 20.0, 25.0, 35.5, 45.5, 55.5, 65.5)
