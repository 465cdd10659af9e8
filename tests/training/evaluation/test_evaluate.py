"""Evaluation of models on stores."""

import contextlib
import io
import json
import math
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import predict_cases
from helpers.stores import write_store
from helpers.tiny import build

from geoprep.errors import UsageError
from loaders import BatchLoader, Folds, RamTiles, select
from training.checkpoint import Checkpoint, save
from training.engine.native import choose_engine
from training.evaluate import main
from training.evaluation.baseline import _unstretched
from training.evaluation.validation import decoded_label, evaluate_runner, examples, validate
from training.model.losses import RoadLoss
from training.model.trainable import Trainable
from training.run.parts import make_prep
from training.runners.model_files import open_model
from training.runners.model_options import ModelOptions
from training.settings import SamplingConfig

MODEL = "helpers.tiny:build"
FP32 = ("--precision", "fp32", "--device", "cpu", "--quiet", "--model", MODEL)
FACTS = replace(
    predict_cases.FACTS, model=MODEL, gsd_m=(0.5, 0.5), mean=(60.0,) * 3, std=(30.0,) * 3
)


class Watched:
    """A runner that keeps what it is given."""

    device = torch.device("cpu")

    def __init__(self, runner, *, fixed_batch):
        self.runner, self.fixed_batch, self.seen = runner, fixed_batch, []

    def __call__(self, image):
        self.seen.append(image)
        return self.runner(image)


def opened(path):
    """Return the runner of a checkpoint, and what it is for."""
    return open_model(ModelOptions(checkpoint=path, device="cpu", precision="fp32", model=MODEL))


@pytest.fixture(scope="module")
def network():
    """A network that learned a little: bright is road."""
    torch.manual_seed(2)
    network = build(3, 8)
    with torch.no_grad():
        network[4].weight[7] = network[4].weight[7].abs() * 4
        network[4].bias[0] = -20  # slower than any road there
    return network


@pytest.fixture
def checkpoint(network, tmp_path):
    """Return a function that saves it with other facts, and returns the path."""

    def make(**facts):
        path = tmp_path / "best.pt"
        save(path, Checkpoint(info=replace(FACTS, **facts), model=network.state_dict()))
        return path

    return make


def judge(path, stores, split="val", **options):
    runner, facts = opened(path)
    return evaluate_runner(runner, facts, stores, split, **options)


def figures_of(*words):
    """Return the JSON document that the command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main([*map(str, words), "--json", *FP32]) == 0
    return json.loads(printed.getvalue())


def test_metrics_equal_those_of_training(network, checkpoint, store_path, command):
    engine = choose_engine("native", "cpu", "fp32", "off")
    tiles = RamTiles.load(store_path, "val")
    trainable = Trainable(make_prep(FACTS, engine.dtype, SamplingConfig()), network, RoadLoss())
    said, rows = validate(trainable, engine, FACTS, BatchLoader(tiles, 3, shuffle=False))
    path = checkpoint(threshold=said["best_threshold"])
    found = figures_of(path, store_path)
    printed = command(main, path, store_path, *FP32).out
    assert "road IoU" in printed
    assert "8 val tiles, 64 x 64 pixels" in printed
    assert found["tiles"] == 8
    assert found["threshold"] == said["best_threshold"]
    assert found["metrics"]["threshold"] == said["threshold"]
    assert [row["scene"] for row in rows] == [row["scene"] for row in found["scenes"]]
    low, high = (f"{said[f'threshold_{end}']:.3f}" for end in ("low", "high"))
    assert re.search(rf"threshold chosen by scenes\W+0\.\d+ \(best {low}-{high}\)", printed)
    assert found["metrics"]["road_iou"] == pytest.approx(said["best_road_iou"], abs=1e-6)
    assert found["metrics"]["iou_1-10"] is None  # no such speed there
    found = figures_of(path, store_path, "--threshold", "0.5")
    for name, value in found["metrics"].items():
        assert value == pytest.approx(said[name], abs=1e-6) or value is None


class Thinned(BatchLoader):
    """A loader of labels with fewer rows from tile to tile, in the end one; or with none."""

    kept = 1

    def __iter__(self):
        for batch in super().__iter__():
            for label, tile in zip(batch.label, batch.index.tolist(), strict=True):
                label[self.kept * (64 - 9 * tile) :] = 255
            yield batch


def test_the_loss_is_that_of_all_labelled_pixels_whatever_the_batches(network, store_path):
    engine = choose_engine("native", "cpu", "fp32", "off")
    tiles = RamTiles.load(store_path, "val")
    trainable = Trainable(make_prep(FACTS, engine.dtype, SamplingConfig()), network, RoadLoss())
    (batch,), target = Thinned(tiles, 8, shuffle=False), trainable.prep.target
    with torch.no_grad():
        logits = trainable.logits(batch.image)
        whole = RoadLoss()(logits, target(batch.label), target.valid(batch.label)).total.item()

    def loss(size):
        loader = Thinned(tiles, size, shuffle=False)
        return validate(trainable, engine, FACTS, loader)[0]["val_loss"]

    assert [loss(size) for size in (1, 3, 8)] == pytest.approx([whole] * 3, rel=1e-5)
    Thinned.kept = 0
    assert math.isnan(loss(3))


def test_batches_levels_and_splits(checkpoint, store_path):
    path = checkpoint()
    one, three = (judge(path, [store_path], batch_size=size) for size in (1, 3))
    assert one.metrics["road_iou"] == pytest.approx(three.metrics["road_iou"], abs=1e-3)
    coarse = judge(path, [store_path], "train", level=32)
    assert (coarse.tiles, coarse.level) == (24, 32)
    assert any("pixels of" in note for note in coarse.notes)
    assert any("was trained on these tiles" in note for note in coarse.notes)


def test_every_form_of_a_result_has_its_notes(checkpoint, command, store_path):
    path, said = checkpoint(gsd_m=(2.0, 2.0)), "wide, those of the model 2 m"
    assert any(said in note for note in figures_of(path, store_path)["notes"])
    several = ("--compare", path, path, "--on", store_path)
    assert said in command(main, *several, *FP32).out
    assert all(said in form["notes"][0] for form in figures_of(*several))
    assert "leave out --compare" in command(main, *several, "--scenes", *FP32, status=2).err


def test_a_fold_is_evaluated_on_its_validation_scenes(checkpoint, command, store_path, store):
    """The store's own split holds two scenes that this fold was trained on."""
    path = checkpoint(folds=4, fold=1)
    said = command(main, path, store_path, *FP32).out
    assert "val tiles of fold 1 of 4, as in training" in " ".join(said.split())
    wanted = select(store, "val", Folds(4, 1)).tiles
    names = {str(store.scenes.id[scene]) for scene in store.tiles.scene[wanted]}
    found = judge(path, [store_path])
    assert {scene["scene"] for scene in found.scenes} == names
    trained = {scene["scene"] for scene in judge(path, [store_path], "train").scenes}
    assert not names & trained
    assert found.tiles == len(wanted)


def test_metrics_per_scene(checkpoint, store_path, tmp_path, command):
    path = checkpoint()
    words = (path, store_path, "--split", "all", "--scenes")
    found = figures_of(*words)
    assert "AOI_0_Test_chip3" in command(main, *words, *FP32).out
    assert [row["scene"] for row in found["scenes"]] == [f"AOI_0_Test_chip{i}" for i in range(8)]
    assert {row["tiles"] for row in found["scenes"]} == {4}
    alone = write_store(tmp_path / "one.zarr", splits=(0, 0, 1, 0, 0, 0, 0, 0))
    judged = judge(path, [alone])
    assert judged.metrics["road_iou"] == pytest.approx(found["scenes"][2]["road_iou"])


def test_a_sweep_over_thresholds(checkpoint, store_path):
    found = figures_of(checkpoint(), store_path)
    assert len(found["sweep"]) == 256
    half = found["sweep"][128]
    assert half["threshold"] == 0.5
    assert half["road_iou"] == pytest.approx(found["metrics"]["road_iou"])
    assert found["sweep"][1]["recall"] >= half["recall"]
    best = max(step["road_iou"] or 0 for step in found["sweep"])
    assert found["metrics"]["best_road_iou"] == pytest.approx(best, abs=1e-6)


def test_the_forest_sees_values_from_before_the_stretching(tmp_path):
    bands = ("red", "green")
    store = write_store(tmp_path / "s.zarr", bands=bands, limits=(20.0, 530.0))
    tiles = RamTiles.load(store, "train", bands=("green",))
    image, _ = tiles.pixels(0)
    seen = image.any(axis=2)
    values = _unstretched(image, tiles, 0)
    assert np.allclose(values[seen], 20 + 2.0 * image[seen])
    assert not values[~seen].any()
    kept = write_store(tmp_path / "k.zarr", bands=bands, limits=(np.nan, np.nan))
    tiles = RamTiles.load(kept, "train", bands=("green",))
    assert np.array_equal(_unstretched(tiles.pixels(0)[0], tiles, 0), tiles.pixels(0)[0])


def test_a_baseline_is_scored_on_the_same_pixels(checkpoint, store_path, tmp_path, monkeypatch):
    found = figures_of(checkpoint(), store_path, "--baseline")
    base, label = found["baseline"], RamTiles.load(store_path, "val").label
    assert (base["tiles"], base["pixels"]) == (8, (label != 255).sum())
    assert base["model"] == pytest.approx(found["metrics"]["road_iou"])
    assert base["most_common"] == pytest.approx((label[label != 255] > 0).mean())
    assert base["forest"] > 0.9  # bright is road
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    without = judge(checkpoint(), [store_path], baseline=True)
    assert "forest" not in without.baseline
    assert any("pip install 'geoprep[baseline]'" in note for note in without.notes)
    held_out = write_store(tmp_path / "held_out.zarr", scenes=2, splits=(1,))
    with pytest.raises(UsageError, match=r"learns from training scenes, and .*held_out.zarr has"):
        judge(checkpoint(), [held_out], baseline=True)


def test_where_the_model_stands_is_printed(checkpoint, command, tmp_path):
    divided = write_store(tmp_path / "divided.zarr", splits=(0, 0, 1, 2))
    path = checkpoint(stores=(str(divided),))
    (path.parent / "metrics.csv").write_text(
        "epoch,level,loss,val_loss,worst_class\n"
        + "".join(f"{i},64,{2 / i},{2 / i},a\n" for i in range(1, 5))
    )
    printed = command(main, path, divided, *FP32).out
    assert re.search(r"road IoU of 2 scenes\W+median 0", printed)
    assert re.search(r"worst\W+AOI_0_Test_chip\d 0", printed)
    assert "next step: the loss still falls, from 0.667 to 0.5 in the last quarter of 4" in printed
    found = figures_of(path, divided)
    assert [row["km_to_training"] < 1 for row in found["scenes"]] == [True, True]
    assert (len(found["next_steps"]), found["training_scenes"]) == (1, 4)
    assert {row["scene"][-1] for row in found["scenes"]} == {"2", "6"}  # none of the split test
    test = figures_of(path, divided, "--split", "test")
    assert {row["scene"][-1] for row in test["scenes"]} == {"3", "7"}
    assert test["next_steps"] == []  # neither advice nor a threshold is drawn from it
    assert not {"threshold", "best_threshold"} & set(test["metrics"])
    for other in ("", "epoch,train_loss\n1,0.5\n"):  # of another program
        (path.parent / "metrics.csv").write_text(other)
        assert figures_of(path, divided)["next_steps"] == []


def test_views_are_averaged(checkpoint, store_path, tmp_path):
    path = checkpoint()
    plain = figures_of(path, store_path)
    turned = figures_of(path, store_path, "--tta", "d4")
    assert turned["tta"] == "d4"
    assert turned["metrics"]["road_iou"] != plain["metrics"]["road_iou"]


def test_tiles_are_padded_by_mirroring_as_in_predictions(checkpoint, network, tmp_path):
    """A tile of 40 pixels goes through the network as 64: with its own mirror image."""
    odd = write_store(tmp_path / "odd.zarr", levels=(40, 20))
    runner, facts = opened(checkpoint(level=40))
    watched = Watched(runner, fixed_batch=False)
    evaluate_runner(watched, facts, [odd])
    image = torch.from_numpy(RamTiles.load(odd, "val").image[0].copy()).permute(2, 0, 1)
    wanted = torch.nn.functional.pad(image[None].float(), (0, 24, 0, 24), mode="reflect")
    assert torch.equal(watched.seen[0][0].float(), wanted[0])


def test_the_last_batch_is_padded_for_runners_of_fixed_batch_size(checkpoint, network, store_path):
    runner, facts = opened(checkpoint())
    watched = Watched(runner, fixed_batch=True)
    found = evaluate_runner(watched, facts, [store_path], batch_size=3)
    assert [len(image) for image in watched.seen] == [3, 3, 3]  # of 8 tiles
    wanted = evaluate_runner(runner, facts, [store_path], batch_size=4)
    assert found.metrics["road_iou"] == pytest.approx(wanted.metrics["road_iou"], abs=1e-6)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"bands": ("red", "nir")}, "trained on bands red, green, blue"),
        ({"speed_unit": "none"}, "other.zarr have no speeds: train one with `targets` binary"),
    ],
)
def test_a_store_that_does_not_fit_is_refused(checkpoint, command, tmp_path, facts, message):
    other = write_store(tmp_path / "other.zarr", scenes=4, **facts)
    assert message in command(main, checkpoint(), other, *FP32, status=2).err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--device", "xpu"), "--device xpu: torch"),
        (("--model", "none"), "--model helpers.tiny:build"),
        (("--threshold", "2"), "--threshold"),
        (("--level", "99"), "level"),
    ],
)
def test_invalid_requests_are_refused(checkpoint, command, store_path, words, message):
    error = command(main, checkpoint(), store_path, *FP32, *words, status=2).err
    assert message in error
    assert "Traceback" not in error


def test_examples_equal_predictions(network, store_path):
    engine = choose_engine("native", "cpu", "fp32", "off")
    loader = BatchLoader(RamTiles.load(store_path, "val"), 3, shuffle=False)
    trainable = Trainable(make_prep(FACTS, engine.dtype, SamplingConfig()), network, RoadLoss())
    (example,) = examples(trainable, engine, FACTS, loader, [1])
    assert example.has_speed
    assert (example.prediction[example.label == 255] == 255).all()
    probabilities = torch.tensor([0.5, 0.4]).view(1, 1, 1, 2)
    binary = replace(FACTS, targets="binary", channels=1, class_mph=())
    assert (decoded_label(probabilities, binary, 0.5) > 0).tolist() == [[[True, False]]]


def test_json_is_one_document_on_stdout(checkpoint, command, store_path):
    """The option takes no value, also before a store."""
    printed = command(main, "--json", checkpoint(), store_path, *FP32)
    assert json.loads(printed.out)["tiles"] == 8
    assert not printed.err
