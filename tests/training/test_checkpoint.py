"""Checkpoints come back as they were, and bad ones are refused by name."""

import os
import pickle
from dataclasses import replace

import pytest
import torch

from training import checkpoint as module
from training.checkpoint import Checkpoint, Facts, load, load_or_previous, previous_of, save
from training.errors import CheckpointError

FACTS = Facts(
    network="resnet34-unet",
    bands=("red", "green", "blue"),
    channels=8,
    targets="bins",
    mean=(100.0, 90.5, 80.25),
    std=(30.0, 20.0, 10.0),
    rescale="scene",
    gsd_m=(0.3, 0.3),
    level=650,
    class_mph=(5.0, 15.0, 25.0, 35.0, 45.0, 55.0, 65.0),
    stores=("moscow.zarr",),
)


def made(step=0):
    weight = torch.randn(4, 3)
    return Checkpoint(
        facts=FACTS,
        network={"weight": weight},
        ema={"weight": weight / 2},
        optimizer={"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 1e-3}]},
        progress={"step": step, "history": [{"epoch": 0, "loss": 0.5}]},
        rng={"torch": torch.get_rng_state()},
        config={"lr": 1e-3, "stores": ["moscow.zarr"]},
    )


def test_round_trip(tmp_path):
    saved = made(7)
    save(tmp_path / "last.pt", saved)
    found = load(tmp_path)
    assert found.facts == FACTS
    assert found.progress == saved.progress
    assert found.config == saved.config
    assert torch.equal(found.network["weight"], saved.network["weight"])
    assert torch.equal(found.rng["torch"], saved.rng["torch"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last.pt"]


def test_the_file_before_stays_as_previous(tmp_path):
    for step in range(3):
        save(tmp_path / "last.pt", made(step))
    assert load(tmp_path).progress["step"] == 2
    assert load(tmp_path / "last.prev.pt").progress["step"] == 1


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_truncated_file_is_refused_and_the_previous_one_used(tmp_path, share):
    for step in range(2):
        save(tmp_path / "last.pt", made(step))
    path = tmp_path / "last.pt"
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(CheckpointError, match=r"last\.pt.*(truncated|damaged)"):
        load(path)
    found, note = load_or_previous(tmp_path)
    assert found.progress["step"] == 0
    assert "last.pt" in note
    assert "last.prev.pt" in note


def test_without_a_usable_previous_one_it_is_an_error(tmp_path):
    save(tmp_path / "last.pt", made())
    (tmp_path / "last.pt").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(CheckpointError, match=r"last\.pt"):
        load_or_previous(tmp_path)
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        load_or_previous(tmp_path / "nowhere")


def test_a_crash_between_the_renames_leaves_the_previous_one(tmp_path):
    save(tmp_path / "last.pt", made(4))
    (tmp_path / "last.pt").replace(previous_of(tmp_path / "last.pt"))
    found, note = load_or_previous(tmp_path)
    assert found.progress["step"] == 4
    assert note is not None


class Evil:
    def __reduce__(self):
        return (os.mkdir, ("harm",))


def test_code_in_a_file_never_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"format": module.FORMAT, "version": 1, "network": Evil()}, "evil.pt")
    (tmp_path / "old.pt").write_bytes(pickle.dumps(Evil()))
    for name in ("evil.pt", "old.pt"):
        with pytest.raises(CheckpointError, match=name):
            load(name)
    assert not (tmp_path / "harm").exists()


def test_foreign_and_future_files_are_refused(tmp_path):
    torch.save({"conv1.weight": torch.zeros(1)}, tmp_path / "weights.pt")
    with pytest.raises(CheckpointError, match=r"weights\.pt is not a checkpoint"):
        load(tmp_path / "weights.pt")
    torch.save({"format": module.FORMAT, "version": 99}, tmp_path / "future.pt")
    with pytest.raises(CheckpointError, match=r"future\.pt has checkpoint version 99"):
        load(tmp_path / "future.pt")


def test_a_flipped_bit_is_noticed(tmp_path):
    big = replace(made(), network={"weight": torch.zeros(50_000)})
    save(tmp_path / "last.pt", big)
    data = bytearray((tmp_path / "last.pt").read_bytes())
    data[len(data) // 2] ^= 16
    (tmp_path / "last.pt").write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged"):
        load(tmp_path)


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    save(tmp_path / "last.pt", made(1))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(CheckpointError, match="No space left"):
        save(tmp_path / "last.pt", made(2))
    monkeypatch.undo()
    assert load(tmp_path).progress["step"] == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last.pt"]


def test_everything_is_on_the_disk_before_a_name_changes(tmp_path, monkeypatch):
    save(tmp_path / "last.pt", made(1))
    seen = []
    flush = module.flush
    monkeypatch.setattr(module, "flush", lambda path: (seen.append(path.name), flush(path)))
    replace_file = module.Path.replace
    monkeypatch.setattr(
        module.Path, "replace", lambda a, b: (seen.append(b.name), replace_file(a, b))[1]
    )
    save(tmp_path / "last.pt", made(2))
    assert seen == [".last.pt.part", tmp_path.name, "last.prev.pt", "last.pt", tmp_path.name]


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    with pytest.raises(TypeError, match="TorchVersion"):
        save(tmp_path / "last.pt", replace(made(), environment={"torch": torch.__version__}))
    assert not list(tmp_path.iterdir())
