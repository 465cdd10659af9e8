"""A loader in the loops of other frameworks: epochs advance, and ranks are found when needed."""

import copy
import re
from pathlib import Path

import pytest
import torch
from helpers.streams import SMALL, samples

from geoprep.errors import UsageError
from loaders import BatchLoader, DevicePrep, RamTiles, StreamTiles, loader

TRAIN = {"crop": 16, "augment": "d4", "seed": 5, "threads": 1}


def keys(batches):
    return [int(key) for batch in batches for key in batch.key]


@pytest.fixture
def group(monkeypatch):
    """Return a function that pretends to be a rank of a process group."""
    return lambda rank, ranks: monkeypatch.setattr(loader, "this_rank", lambda: (rank, ranks))


def fit_like_lightning(one, epochs, start=0):
    """Iterate as Lightning's fit loop does, with what it does to any loader.

    Each epoch has an iterator; that of the first one is made before `set_epoch`, as by a restart.
    """
    found = []
    batches = iter(one)
    for epoch in range(start, epochs):
        samplers = [getattr(one, "sampler", None)]
        samplers.append(getattr(getattr(one, "batch_sampler", None), "sampler", None))
        for sampler in samplers:
            if callable(set_epoch := getattr(sampler, "set_epoch", None)):
                set_epoch(epoch)
        total = len(one)
        found.append([int(key) for _ in range(total) for key in next(batches).key])
        batches = iter(one)
    return found


def test_lightnings_loop_sees_another_order_every_epoch(painted):
    found = fit_like_lightning(BatchLoader(painted, 8, **TRAIN), 3)
    plain = BatchLoader(painted, 8, **TRAIN)
    assert found == [keys(plain) for _ in range(3)]
    assert fit_like_lightning(BatchLoader(painted, 8, **TRAIN), 3, start=2) == found[2:]


def test_an_iteration_belongs_to_the_epoch_at_its_first_batch(painted):
    one, plain = BatchLoader(painted, 8, **TRAIN), BatchLoader(painted, 8, **TRAIN)
    first, second = keys(plain), keys(plain)
    batches = iter(one)
    one.set_epoch(1)
    assert keys(batches) == second
    one.set_epoch(0)
    batches = iter(one)
    found = keys([next(batches)])
    one.set_epoch(1)  # for the next iteration
    assert found + keys(batches) == first
    assert keys(one) == second


@pytest.mark.parametrize("moment", [{"every_n_epochs": 1}, {"every_n_train_steps": 1}])
def test_checkpoints_of_lightning_resume_with_the_batches_that_follow(painted, tmp_path, moment):
    lightning = pytest.importorskip("lightning", reason="Lightning is not installed")

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.weight, self.seen = torch.nn.Parameter(torch.zeros(1)), []

        def training_step(self, batch, index):
            self.seen.append(keys([batch]))
            return self.weight.sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def seen(resumed=None):
        save = lightning.pytorch.callbacks.ModelCheckpoint(
            tmp_path / "saved", "{step}", save_top_k=-1, **moment
        )
        off = dict.fromkeys(["logger", "enable_progress_bar", "enable_model_summary"], False)
        trainer = lightning.Trainer(
            max_epochs=3, accelerator="cpu", callbacks=[] if resumed else [save],
            enable_checkpointing=not resumed, **off,
        )  # fmt: skip
        trainer.fit(model := Model(), BatchLoader(painted, 8, **TRAIN), ckpt_path=resumed)
        return model.seen

    whole = seen()
    saved = sorted((tmp_path / "saved").glob("*.ckpt"))
    assert len(saved) in {3, len(whole)}
    for path in saved:
        assert seen(path) == whole[int(path.stem.removeprefix("step=")) :]


def test_an_own_loop_resumes_at_every_moment(painted):
    whole = []
    one = BatchLoader(painted, 8, **TRAIN)
    while one.epoch < 2:
        whole += [keys([batch]) for batch in one]
    assert len(whole) == 2 * len(one)
    for stop in range(1 + len(whole)):
        one, again = BatchLoader(painted, 8, **TRAIN), BatchLoader(painted, 8, **TRAIN)
        seen = []
        while len(seen) < stop:
            for batch in one:
                seen.append(keys([batch]))
                if len(seen) == stop:
                    break
        again.load_state_dict(one.state_dict())
        while again.epoch < 2:
            seen += [keys([batch]) for batch in again]
        assert seen == whole


def test_two_iterations_at_a_time_skip_no_epoch(painted):
    one, plain = BatchLoader(painted, 8, **TRAIN), BatchLoader(painted, 8, **TRAIN)
    first, second = keys(plain), keys(plain)
    earlier, later = iter(one), iter(one)
    begun = keys([next(earlier)]), keys([next(later)])
    assert begun[0] + keys(earlier) == begun[1] + keys(later) == first
    assert one.epoch == 1
    assert keys(one) == second


def test_lightnings_check_of_shuffling_finds_what_it_looks_for(painted):
    one = BatchLoader(painted, 8, shuffle=False)
    assert one.batch_sampler is None
    assert callable(one.sampler.set_epoch)


@pytest.mark.parametrize("kind", ["ram", "stream"])
def test_a_loader_created_before_the_process_group_is_sharded(large, group, kind):
    def create():
        tiles = RamTiles.load(large) if kind == "ram" else StreamTiles.open(large, **SMALL)
        return BatchLoader(tiles, 4, **TRAIN)

    group(0, 1)
    ranks = [create(), create()]
    expected = samples(create())
    seen = []
    for rank, one in enumerate(ranks):
        group(rank, 2)
        assert len(one) == 20
        seen.append(samples(one))
        assert one.schedule.world_size == 2
    assert not set(seen[0]) & set(seen[1])
    assert set(seen[0]) | set(seen[1]) == set(expected)


def test_a_state_that_is_loaded_before_the_process_group_is_sharded(painted, group):
    one = BatchLoader(painted, 4, drop_last=False, **TRAIN)
    next(iter(one))
    again = BatchLoader(painted, 4, drop_last=False, **TRAIN)
    again.load_state_dict(one.state_dict())
    rest = keys(BatchLoader(painted, 4, drop_last=False, **TRAIN))[4:]
    other = copy.deepcopy(again)
    group(1, 2)
    second = keys(again)
    group(0, 2)
    assert sorted(keys(other) + second) == sorted(rest)


def test_a_process_group_that_changes_in_mid_iteration_is_refused(painted, group):
    one = BatchLoader(painted, 4, **TRAIN)
    batches = iter(one)
    next(batches)
    group(1, 2)
    with pytest.raises(UsageError, match="since this iteration began"):
        next(batches)
    del batches
    assert len(keys(one)) == 12


@pytest.mark.parametrize("framework", ["lightning", "accelerate"])
def test_the_block_of_the_tutorial_trains_two_epochs(make_store, tmp_path, monkeypatch, framework):
    pytest.importorskip(framework)
    page = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "training-loop.md"
    pattern = rf"```python {framework}\n(.*?)```"
    (block,) = re.findall(pattern, page.read_text("utf-8"), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    tiles = RamTiles.load(make_store())
    losses = []

    def loss_of(logits, target, valid):
        losses.append(((logits - target).square().mean(dim=1) * valid).mean())
        return losses[-1]

    one = BatchLoader(tiles, 4, **TRAIN)
    names = {
        "model": torch.nn.Conv2d(len(tiles.bands), 1, 3, padding=1),
        "prep": DevicePrep.from_store(tiles.store, targets="binary"),
        "loader": one,
        "loss_of": loss_of,
    }
    exec(block, names)
    assert len(losses) == 2 * len(one)
    assert one.epoch == 2
