"""Checkpoints come back as they were, and bad ones are refused by name."""

import math
import os
import pickle
from dataclasses import replace

import pytest
import torch
from helpers import predict_cases

from geoprep.errors import UsageError
from training import checkpoint as module
from training.checkpoint import Checkpoint, CheckpointError, RunProgress, load, load_model, save
from training.model.build import build_model

FACTS = replace(predict_cases.FACTS, model="resnet34-unet", stores=("moscow.zarr",))


def made(step=0):
    weight = torch.randn(4, 3)
    return Checkpoint(
        info=FACTS,
        model={"weight": weight},
        ema={"weight": weight / 2},
        optimizer={"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 1e-3}]},
        progress={"step": step, "history": [{"epoch": 0, "loss": 0.5}]},
        rng={"torch": torch.get_rng_state()},
        config={"lr": 1e-3, "stores": ["moscow.zarr"]},
    )


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_truncated_file_is_refused(tmp_path, share):
    save(tmp_path / "last.pt", made())
    path = tmp_path / "last.pt"
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(CheckpointError, match=r"last\.pt.*(truncated|damaged)"):
        load(path)
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize("lacking", ["info", "bands", "model", "progress", "version"])
def test_an_incomplete_file_is_refused(tmp_path, lacking):
    save(tmp_path / "last.pt", made())
    values = torch.load(tmp_path / "last.pt", weights_only=True)
    del (values["info"] if lacking == "bands" else values)[lacking]
    torch.save(values, tmp_path / "last.pt")
    with pytest.raises(CheckpointError, match=r"last\.pt"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("threshold", "0.5 or print()"), ("threshold", 7.0), ("threshold", math.nan)),
        *(("mean", [1.0]), ("std", ["1", "1", "1"]), ("std", [-1.0, 1.0, 1.0]), ("mean", 3)),
        *(("channels", 1 << 40), ("channels", True), ("level", 0), ("bands", "rgb")),
        *(("class_mph", ["x"]), ("class_colors", ["red"]), ("limits", [[1.0, 2.0]])),
        *(("targets", "continuous"), ("nodata", "black"), ("unknown_field", 1)),
    ],
)
def test_what_a_record_states_is_typed_and_bounded(tmp_path, field, value):
    """It becomes sizes of arrays."""
    save(tmp_path / "last.pt", made())
    values = torch.load(tmp_path / "last.pt", weights_only=True)
    values["info"][field] = value
    torch.save(values, tmp_path / "last.pt")
    with pytest.raises(CheckpointError, match=rf"last\.pt.*{field}"):
        load(tmp_path)


class Evil:
    def __reduce__(self):
        return (os.mkdir, ("harm",))


def test_code_in_a_file_never_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"format": module.FORMAT, "version": 1, "model": Evil()}, "evil.pt")
    (tmp_path / "old.pt").write_bytes(pickle.dumps(Evil()))
    for name in ("evil.pt", "old.pt"):
        with pytest.raises(CheckpointError, match=name):
            load(name)
    assert not (tmp_path / "harm").exists()


def test_foreign_and_future_files_are_refused(tmp_path):
    torch.save({"conv1.weight": torch.zeros(1)}, tmp_path / "weights.pt")
    with pytest.raises(CheckpointError, match=r"weights\.pt is a file of torch"):
        load(tmp_path / "weights.pt")
    torch.save({"format": module.FORMAT, "version": 99}, tmp_path / "future.pt")
    with pytest.raises(CheckpointError, match=r"future\.pt has checkpoint version 99"):
        load(tmp_path / "future.pt")


def test_a_flipped_bit_is_detected(tmp_path):
    big = replace(made(), model={"weight": torch.zeros(50_000)})
    save(tmp_path / "last.pt", big)
    data = bytearray((tmp_path / "last.pt").read_bytes())
    data[len(data) // 2] ^= 16
    (tmp_path / "last.pt").write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged"):
        load(tmp_path)


def test_a_failed_write_keeps_the_previous_file(tmp_path, monkeypatch):
    save(tmp_path / "last.pt", made(1))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(CheckpointError, match="No space left"):
        save(tmp_path / "last.pt", made(2))
    monkeypatch.undo()
    assert load(tmp_path).progress["step"] == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last.pt"]


def test_files_are_flushed_before_they_are_renamed(tmp_path, monkeypatch):
    save(tmp_path / "last.pt", made(1))
    seen = []
    flush = module.flush
    monkeypatch.setattr(module, "flush", lambda path: (seen.append(path.name), flush(path)))
    replace_file = module.Path.replace
    monkeypatch.setattr(
        module.Path, "replace", lambda a, b: (seen.append(b.name), replace_file(a, b))[1]
    )
    save(tmp_path / "last.pt", made(2))
    assert seen == [".last.pt.part", tmp_path.name, "last.pt", tmp_path.name]


def test_values_that_cannot_be_loaded_are_not_written(tmp_path):
    with pytest.raises(TypeError, match="TorchVersion"):
        save(tmp_path / "last.pt", replace(made(), environment={"torch": torch.__version__}))
    assert not list(tmp_path.iterdir())


def test_a_model_is_built_without_random_weights(tmp_path, monkeypatch):
    wanted = build_model(bands=3, channels=8)
    save(tmp_path / "best.pt", Checkpoint(info=FACTS, model=wanted.state_dict()))
    monkeypatch.setattr(torch.Tensor, "normal_", lambda *args, **of: pytest.fail("random weights"))
    found, _ = load_model(tmp_path / "best.pt")
    assert all(weight.requires_grad for weight in found.parameters())
    image = torch.rand(1, 3, 32, 32)
    assert torch.equal(found(image), wanted.eval()(image))


def test_a_checkpoint_imports_code_with_consent_only(tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text(
        "import pathlib\n"
        "from helpers.tiny import build\n"
        "pathlib.Path(__file__).with_name('harm').touch()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    network = build_model("helpers.tiny:build", bands=3, channels=8).state_dict()
    save(tmp_path / "a.pt", replace(made(), info=replace(FACTS, model="trap:build"), ema=None))
    with pytest.raises(UsageError, match="`model` trap:build"):
        load_model(tmp_path / "a.pt")
    assert not (tmp_path / "harm").exists()
    info = replace(FACTS, model="trap:build")
    save(tmp_path / "a.pt", replace(made(), info=info, model=network, ema=None))
    loaded, _ = load_model(tmp_path / "a.pt", model="trap:build")
    assert (tmp_path / "harm").exists()
    assert loaded(torch.zeros(1, 3, 8, 8)).shape == (1, 8, 8, 8)


NONE = math.nan


@pytest.mark.parametrize(
    ("epochs", "best"),
    [
        ([(0.2, 1.0), (0.5, 2.0), (0.5, 0.5)], 1),
        ([(NONE, 1.0), (NONE, 0.4), (NONE, 0.6)], 1),  # no roads: the lowest loss
        ([(NONE, NONE), (NONE, NONE), (NONE, NONE)], 2),  # no labels: the last
        ([(NONE, 1.0), (0.0, 2.0), (NONE, 0.1)], 1),
        ([(NONE, NONE), (NONE, 3.0), (NONE, NONE)], 1),
    ],
)
def test_the_best_epoch_is_chosen_by_what_exists(epochs, best):
    progress = RunProgress()
    for progress.epoch, (score, loss) in enumerate(epochs):
        progress.is_best(score, loss)
    assert progress.best_epoch == best
