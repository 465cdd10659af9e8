"""Ranks of a training step: what they agree on, and how long they wait for each other."""

import json
import os
import socket
from datetime import timedelta

import pytest
import torch
from helpers.forks import as_rank, run_ranks

from geoprep import cpus
from training.engine import distributed

RANK = """
import json, torch
from torch import nn
from helpers import tiny
from helpers.steps import batch, trainable_of
from loaders import this_rank
from training.engine.distributed import average_in_place, data_parallel, process_group
from training.engine.native import choose_engine
from training.run.step import StepState, TrainingError, train_step
from training.settings import Config
from training.model.trainable import copy_weights, running_statistics


class Shifted(nn.Module):
    '''The loss plus a constant, which has no gradient.'''

    def __init__(self, loss, by):
        super().__init__()
        self.inner, self.by = loss, by

    def forward(self, *given):
        parts = self.inner(*given)
        return parts._replace(total=parts.total + self.by)


class Partial(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 8, 1)

    def forward(self, image):
        return self.used(image)


def made(model, **options):
    engine = choose_engine("native", "cpu", "fp32", "off")
    trainable = trainable_of(model)
    state = StepState.of(trainable, engine, Config(lr=0.01, clip=None))
    return engine, trainable, state, data_parallel(trainable, engine.device, **options)


def marked(rank):
    model = tiny.normed(3, 8)
    model.register_buffer("constant", torch.full((3,), 0.1))
    model.register_buffer("rank", torch.full((1,), float(rank)))
    return model


def given(rank):
    noise = batch()
    noise.image //= rank + 1
    return noise


def unequal(rank):
    noise = given(rank)
    noise.label[:, 4 + 20 * rank :] = 255
    return noise


torch.set_num_threads(1)
with process_group("cpu"):
    torch.manual_seed(0)
    rank, found = this_rank()[0], {}
    engine, trainable, state, module = made(marked(rank))
    model = trainable.model
    train_step(module, [given(rank)], state)
    own = {n: v.tolist() for n, v in running_statistics(model).items()}
    average_in_place(running_statistics(model).values())
    means = {n: v.tolist() for n, v in running_statistics(model).items()}
    found["statistics"], found["weight"] = [own, means], float(model[0].weight.detach().sum())

    before = copy_weights(model)
    trainable.loss = Shifted(trainable.loss, torch.inf if rank else 0.0)
    try:
        train_step(module, [given(rank)], state)
    except TrainingError as error:
        found["inf"] = str(error)
    object.__setattr__(engine, "skips_steps", True)
    state.optimizer.zero_grad()
    result = train_step(module, [given(rank), given(rank)], state, 2)
    after = copy_weights(model)
    parameters = [name for name, _ in model.named_parameters()]
    found["skipped"] = all(torch.equal(before[name], after[name]) for name in parameters)
    try:
        result.check(1)
    except TrainingError as error:
        found["late"] = str(error)

    found["step"] = []  # of each rank, and of one process with the batches of both
    for parted in (True, False):
        torch.manual_seed(0)
        trainable = trainable_of(nn.Conv2d(3, 8, 1))
        trainable.loss.dice = 0.0
        state = StepState.of(trainable, engine, Config(lr=0.01, clip=None, optimizer="sgd"))
        batches = [unequal(rank)] if parted else [unequal(0), unequal(1)]
        module = data_parallel(trainable, engine.device) if parted else trainable
        train_step(module, batches, state, len(batches))
        found["step"].append(trainable.model.weight.flatten().tolist())

    for find in (True, False):
        engine, trainable, state, module = made(Partial(), find_unused=find)
        try:
            for _ in range(2):
                train_step(module, [given(rank)], state)
            found[f"unused {find}"] = "trained"
        except RuntimeError as error:
            found[f"unused {find}"] = str(error)
    print(json.dumps(found))
"""


@pytest.mark.slow
def test_two_ranks_agree_on_steps_and_average_their_statistics(tmp_path, forks):
    ended = run_ranks(forks, ("-c", RANK), (tmp_path, tmp_path))
    assert [one.returncode for one in ended] == [0, 0], ended[0].stderr + ended[1].stderr
    ranks = [json.loads(one.stdout) for one in ended]
    (one, means), (other, same_means) = (rank["statistics"] for rank in ranks)
    assert means == same_means
    for name, mean in means.items():
        assert mean == pytest.approx(
            [(a + b) / 2 for a, b in zip(one[name], other[name], strict=True)]
        )
    assert one["1.running_mean"] != other["1.running_mean"]
    assert (one["rank"], other["rank"]) == ([0], [1])  # they are not sent in every step
    assert means["constant"] == one["constant"]
    assert ranks[0]["weight"] == ranks[1]["weight"]
    for rank in ranks:  # an infinite loss in the second rank
        assert rank["inf"] == rank["late"] == "the loss is not a number"
        assert rank["skipped"]
        assert rank["step"][0] == pytest.approx(rank["step"][1], rel=1e-5)
        assert rank["unused True"] == "trained"
        assert "find_unused_parameters" in rank["unused False"]


def test_ranks_wait_for_each_other_as_long_as_asked_for(monkeypatch):
    asked = []
    as_rank(monkeypatch)
    monkeypatch.setattr(
        *(distributed.dist, "init_process_group"), lambda _, timeout: asked.append(timeout)
    )
    monkeypatch.setattr(distributed.dist, "destroy_process_group", lambda: None)
    for minutes in ((), (2.5,)):
        with distributed.process_group("cpu", *minutes):
            pass
    assert asked == [timedelta(hours=1), timedelta(minutes=2.5)]


@pytest.mark.parametrize(
    ("others", "threads", "apart"),
    [
        ([(0, 1, 2, 3)], 2, 4),
        ([(4, 5, 6, 7)], 4, 4),
        ([(0, 1), (2, 3), (8, 9)], 1, 4),
        ([(4, 5, 6, 7)], 2, 2),
    ],
    ids=["shared", "pinned apart", "in part", "two processors per core"],
)
def test_ranks_divide_the_cores_that_they_share(monkeypatch, tmp_path, others, threads, apart):
    mine, set_to = {0, 1, 2, 3}, []
    machine = socket.gethostname()

    def gather(found, one):
        found[:] = [one, *((machine, set(cores)) for cores in others)]

    as_rank(monkeypatch, LOCAL_WORLD_SIZE=1 + len(others))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: mine)
    monkeypatch.setattr(distributed, "is_distributed", lambda: True)
    monkeypatch.setattr(distributed, "this_rank", lambda: (0, 1 + len(others)))
    monkeypatch.setattr(distributed.dist, "all_gather_object", gather)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    monkeypatch.setattr(cpus, "_TOPOLOGY", tmp_path)
    for number in mine:
        (tmp_path / f"cpu{number}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{number}/topology/thread_siblings_list").write_text(f"{number % apart}\n")
    distributed.set_threads(None)
    assert set_to == [threads]
