"""The losses against their formulas in float64, and what must not count."""

import pytest
import torch

from training.model.losses import RoadLoss


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(2, 3, 5, 7, generator=generator)
    target = (torch.rand(2, 3, 5, 7, generator=generator) < 0.3).float()
    valid = torch.rand(2, 5, 7, generator=generator) < 0.8
    return logits, target, valid


def _reference(logits, target, valid, gamma):
    """CRESI's formulas in float64: focal (or BCE for gamma 0) and batch-wide soft dice."""
    keep = valid[:, None].expand_as(logits)
    p = torch.sigmoid(logits.double())[keep]
    t = target.double()[keep]
    pt = t * p + (1 - t) * (1 - p)
    main = (-((1 - pt) ** gamma) * pt.log()).mean()
    dice = 1 - (2 * (p * t).sum() + 1e-5) / (p.sum() + t.sum() + 1e-5)
    return main, dice


@pytest.mark.parametrize(("name", "gamma"), [("focal-dice", 2), ("ce-dice", 0)])
def test_the_loss_follows_its_formula(batch, name, gamma):
    parts = RoadLoss(name)(*batch)
    main, dice = _reference(*batch, gamma)
    torch.testing.assert_close(parts.main.double(), main, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(parts.dice.double(), dice, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(parts.total, 0.75 * parts.main + 0.25 * parts.dice)


@pytest.mark.parametrize("name", ["focal-dice", "ce-dice"])
def test_invalid_pixels_do_not_count(batch, name):
    logits, target, valid = batch
    other = torch.where(valid[:, None], logits, 9.0), torch.where(valid[:, None], target, 1.0)
    torch.testing.assert_close(RoadLoss(name)(logits, target, valid), RoadLoss(name)(*other, valid))
    logits.requires_grad_()
    RoadLoss(name)(logits, target, valid).total.backward()
    assert not logits.grad[(~valid)[:, None].expand_as(logits)].any()


def test_the_loss_without_valid_pixels_is_zero(batch):
    logits, target, valid = batch
    logits.requires_grad_()
    parts = RoadLoss()(logits, target, torch.zeros_like(valid))
    parts.total.backward()
    assert parts.total.item() == 0
    assert not logits.grad.any()


@pytest.mark.parametrize("name", ["focal-dice", "ce-dice"])
@pytest.mark.parametrize("size", [1e4, -1e4, 0.0])
def test_extreme_logits_stay_finite(name, size):
    logits = torch.full((1, 1, 2, 2), size, requires_grad=True)
    target = torch.tensor([[[[0.0, 1.0], [0.4, 1.0]]]])
    parts = RoadLoss(name)(logits, target, torch.ones(1, 2, 2, dtype=torch.bool))
    parts.total.backward()
    assert torch.isfinite(torch.stack(parts)).all()
    assert torch.isfinite(logits.grad).all()


def test_the_loss_of_a_soft_target_is_minimal_at_the_target():
    """The baseline's focal term is least at 0 or 1 whatever the target; this one at the target."""
    p = torch.linspace(0.05, 0.95, 19)
    target, valid = torch.full((1, 1, 1, 1), 0.4), torch.ones(1, 1, 1, dtype=torch.bool)
    losses = [RoadLoss()(torch.logit(v).view(1, 1, 1, 1), target, valid).main for v in p]
    assert p[torch.stack(losses).argmin()].item() == pytest.approx(0.4)


def test_the_loss_of_bf16_logits_is_computed_in_fp32(batch):
    logits, target, valid = batch
    low = logits.bfloat16()
    torch.testing.assert_close(
        RoadLoss()(low, target.bfloat16(), valid), RoadLoss()(low.float(), target, valid)
    )


def test_channel_weights_count_in_both_parts(batch):
    logits, target, valid = batch
    only = RoadLoss(weights=torch.tensor([3.0, 0.0, 0.0]))(logits, target, valid)
    alone = RoadLoss()(logits[:, :1], target[:, :1], valid)
    torch.testing.assert_close(only.main, alone.main)
    torch.testing.assert_close(only.dice, alone.dice, rtol=1e-4, atol=0)


def test_equal_weights_change_nothing(batch):
    torch.testing.assert_close(RoadLoss(weights=torch.ones(3))(*batch), RoadLoss()(*batch))
