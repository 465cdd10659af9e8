"""Training on labels of classes: loss, metrics, runs."""

import json
import re
from dataclasses import asdict

import numpy as np
import pytest
import torch
from helpers.runs import rows
from helpers.stores import write_store
from PIL import Image
from sklearn.metrics import confusion_matrix, jaccard_score
from torch.nn import functional

import training
from geoprep.store.reader import StoreReader
from training.checkpoint import ModelInfo, load
from training.evaluate import main as evaluate_main
from training.evaluation.metrics import ClassMetrics, worst_class
from training.export import main as export_main
from training.model.losses import ClassLoss
from training.run.parts import class_share

NAMES = ("background", "slow", "fast")
OTHER = ("fast", "slow", "background")
WEIGHTS = torch.tensor([0.5, 1.0, 1.5])


@pytest.fixture(scope="module")
def cover(tmp_path_factory):
    """Return a store of three classes."""
    return write_store(tmp_path_factory.mktemp("cover") / "cover.zarr", classes=NAMES)


@pytest.fixture(scope="module")
def batch():
    """Return logits, target and valid mask with all classes, some pixels without a label."""
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 8, 9, generator=random)
    target = torch.randint(0, 3, (2, 8, 9), generator=random)
    valid = torch.rand(2, 8, 9, generator=random) > 0.2
    return logits, target.masked_fill(~valid, -100), valid


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_the_pixelwise_part_is_cross_entropy_or_focal_loss_of_torch(batch, weights):
    logits, target, valid = batch
    expected = functional.cross_entropy(logits, target, weights, ignore_index=-100)
    torch.testing.assert_close(ClassLoss("ce-dice", weights)(*batch).main, expected)
    each = functional.cross_entropy(logits, target, weights, ignore_index=-100, reduction="none")
    right = logits.softmax(1).gather(1, target.clamp(min=0)[:, None])[:, 0]
    total = valid.sum() if weights is None else weights[target[valid]].sum()
    focal = (each * (1 - right).square())[valid].sum() / total
    torch.testing.assert_close(ClassLoss("focal-dice", weights)(*batch).main, focal)


def test_dice_is_the_mean_over_the_classes_in_the_labels(batch):
    logits, target, valid = batch
    target = torch.where(target == 2, 1, target)  # the last class is in no label
    p, parts = logits.softmax(1).movedim(1, -1)[valid], []
    for number in (0, 1):
        truth = (target[valid] == number).float()
        parts.append(1 - 2 * (p[:, number] * truth).sum() / (p[:, number].sum() + truth.sum()))
    found = ClassLoss(dice=1.0)(logits, target, valid)
    torch.testing.assert_close(found.dice, torch.stack(parts).mean(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.total, found.dice)


def test_pixels_without_a_label_never_count(batch):
    logits, target, valid = batch
    other = logits + 9 * torch.randn_like(logits) * ~valid[:, None]
    for weights in (None, WEIGHTS):
        loss = ClassLoss(weights=weights)
        torch.testing.assert_close(loss(other, target, valid), loss(*batch))
    nothing = ClassLoss()(logits, target, torch.zeros_like(valid))
    assert [part.item() for part in nothing] == [0, 0, 0, 0]


def test_metrics_are_those_of_scikit_learn():
    random = np.random.default_rng(0)
    label = random.choice(np.array([0, 1, 3, 255], np.uint8), (3, 10, 12))
    probabilities = torch.from_numpy(random.random((3, 5, 10, 12), np.float32))
    metrics = ClassMetrics("abcde", groups=2)
    metrics.update(probabilities, torch.from_numpy(label), torch.tensor([0, 1, 1]))
    known, found = label != 255, probabilities.argmax(1).numpy()
    truth, found = label[known], found[known]
    assert metrics.confusion() == confusion_matrix(truth, found, labels=range(5)).tolist()
    iou = jaccard_score(truth, found, labels=range(5), average=None, zero_division=0)
    values = metrics.compute()
    assert values["mean_iou"] == pytest.approx(iou[[0, 1, 3]].mean())
    assert values["worst_iou"] == pytest.approx(iou[[0, 1, 3]].min())
    assert values["iou_c"] == 0  # never in a label, but predicted
    assert values["accuracy"] == pytest.approx((truth == found).mean())
    first = label[0] != 255
    alone = confusion_matrix(label[0][first], probabilities[0].argmax(0).numpy()[first])
    assert metrics.by_group()[0]["accuracy"] == pytest.approx(np.trace(alone) / alone.sum())


def test_a_prediction_that_is_no_number_is_left_out_and_counted():
    metrics = ClassMetrics("ab")
    probabilities = torch.tensor([[[[0.9, torch.nan]], [[0.1, 0.5]]]])
    metrics.update(probabilities, torch.zeros(1, 1, 2, dtype=torch.uint8))
    assert (metrics.compute()["mean_iou"], int(metrics.lost)) == (1, 1)
    assert worst_class(metrics.compute(), "ab") == "a"


def test_the_worst_class_is_one_that_labels_have():
    metrics = ClassMetrics(names := ("field", "road", "building"))
    found = torch.tensor([0, 0, 0, 2, 1, 1, 1, 0])  # no label is a building
    label = torch.tensor([[[0, 0, 0, 0, 1, 1, 1, 1]]])
    metrics.update(torch.nn.functional.one_hot(found, 3).T[None, :, None].float(), label)
    row = metrics.compute()
    assert (worst_class(row, names), row["iou_building"]) == ("field", 0)
    assert row["worst_iou"] == row["iou_field"] == pytest.approx(0.6)


def test_a_run_on_classes_learns_them_without_being_told(fit, out, cover):
    options = ("--epochs", 5, "--lr", "0.03", "--weights", "classes", "--class-weights", "auto")
    printed = fit("--out", out, *options, store=cover).out
    last = rows(out)[-1]
    assert float(last["mean_iou"]) > 0.5
    assert last["worst_class"] == min(NAMES, key=lambda name: float(last[f"iou_{name}"]))
    assert f"mean IoU {float(last['mean_iou']):.3f}  worst {last['worst_class']}" in printed
    assert "3 channels: background, slow, fast (classes)" in printed
    info = load(out / "best.pt").info
    store = StoreReader.open(cover)
    assert (info.targets, info.class_names) == ("classes", NAMES)
    assert info.class_colors == store.meta.class_colors
    assert load(out / "best.pt").progress["best"] == max(float(r["mean_iou"]) for r in rows(out))
    assert ModelInfo.from_plain(asdict(info)) == info
    picture = np.asarray(Image.open(out / "pictures" / "epoch_005.png").convert("RGB"))
    assert {tuple(c) for c in store.classes.rgb} <= {tuple(c) for c in picture.reshape(-1, 3)}


def test_folds_count_the_classes_of_their_training_scenes(fit, out, cover):
    fit("--out", out, "--epochs", 1, "--folds", 2, store=cover)
    assert "mean_iou" in rows(out)[0]


def test_a_class_that_never_occurs_is_said_before_the_first_epoch(fit, out, tmp_path):
    store = write_store(tmp_path / "rare.zarr", scenes=4, classes=(*NAMES, "water", "ice"))
    printed = fit("--out", out, "--epochs", 1, store=store).out
    assert "note: no pixel of the training tiles has the class water, ice" in printed
    assert printed.index("water, ice: ") < printed.index("epoch 1/1")


def test_classes_of_a_second_store_are_reordered_with_a_note(fit, out, tmp_path, cover):
    other = write_store(tmp_path / "other.zarr", scenes=4, classes=OTHER)
    said = fit(cover, other, "--out", out, "--epochs", 1, store=None).out
    assert "other.zarr has the classes in the order fast, slow, background" in said
    assert load(out / "best.pt").info.class_names == NAMES
    one, two = StoreReader.open(cover), StoreReader.open(other)
    mirrored = class_share([two], NAMES)[[2, 1, 0]]
    assert class_share([two], OTHER).tolist() == mirrored.tolist()
    assert class_share([one, two], NAMES).sum() == pytest.approx(1)


def test_data_of_another_kind_is_refused_in_one_line(fit, tmp_path, cover, store_path):
    out, speeds = tmp_path / "run", tmp_path / "speeds"
    common = ("--epochs", 1, "--pictures", 0)
    fit("--out", out, *common, store=cover)
    fit("--out", speeds, *common, store=store_path)
    other = write_store(tmp_path / "lakes.zarr", scenes=4, classes=(*NAMES, "lake"))
    for folder, store, says in (
        (out, store_path, "trained on the classes background, slow, fast; the labels of"),
        (speeds, cover, "trained on speeds of roads; the labels of"),
        (out, other, "hold the classes background, slow, fast, lake"),
    ):
        said = fit(store, "--resume", folder, "--epochs", 2, store=None, status=2).err
        (line,) = said.splitlines()
        assert says in line


@pytest.mark.parametrize(
    ("store", "options", "says"),
    [
        ("cover", ("--targets", "bins"), "hold classes: use --targets classes"),
        ("cover", ("--min-share", "water"), "write CLASS=SHARE"),
        ("cover", ("--min-share", "water=0.1"), "no class 'water'"),
        ("cover", ("--min-road", "0.1"), "--min-road is for labels of speeds: use --min-share"),
        (
            "store_path",
            ("--targets", "binary", "--class-weights", "auto"),
            "--class-weights auto needs labels of classes, or of speeds",
        ),
        ("store_path", ("--targets", "classes"), "hold speeds: use --targets bins"),
    ],
)
def test_settings_for_labels_of_the_other_kind_are_refused(fit, out, request, store, options, says):
    found = request.getfixturevalue(store)
    said = fit("--out", out, "--epochs", 1, *options, store=found, status=2).err
    assert says in said


def test_evaluation_has_iou_per_class_and_the_confusion_matrix(fit, command, out, tmp_path, cover):
    fit("--out", out, "--epochs", 1, "--pictures", 0, store=cover)
    other = write_store(tmp_path / "other.zarr", classes=OTHER)  # the same tiles
    documents = []
    for store in (cover, other):
        usual = (out, store, "--model", "helpers.tiny:build", "--device", "cpu", "--quiet")
        documents.append(json.loads(command(evaluate_main, *usual, "--json").out))
    one, two = documents
    assert one["confusion"] == two["confusion"]
    assert np.sum(one["confusion"]) == 8 * (64 * 64 - 4)
    table = np.array(one["confusion"])
    iou = np.diag(table) / (table.sum(0) + table.sum(1) - np.diag(table))
    assert [one["metrics"][f"iou_{name}"] for name in NAMES] == pytest.approx(iou)
    assert (one["threshold"], one["classes"]) == (None, list(NAMES))
    assert all("iou_fast" in scene for scene in one["scenes"])
    printed = command(evaluate_main, *usual, "--baseline").out
    assert re.search(r"random forest, learned from 49,992 pixels\W+(0\.9|1\.0)", printed)
    assert re.search(r"most common class\W+0\.2", printed)  # background, one of three
    assert "mean IoU of classes" in printed
    assert "label \\ prediction" in printed
    assert "has the classes in the order fast, slow, background" in printed
    model = training.load_model(out, device="cpu", model="helpers.tiny:build")
    assert model.info.class_names == NAMES
    found = model(np.zeros((3, 40, 40), np.uint8))
    assert found.sum(axis=0) == pytest.approx(1, abs=1e-5)


def test_an_exported_model_of_classes_scores_as_its_checkpoint(fit, command, tmp_path, cover):
    out, file = tmp_path / "run", tmp_path / "model.pt2"
    fit("--out", out, "--epochs", 1, "--pictures", 0, store=cover)
    words = (out / "best.pt", "--model", "helpers.tiny:build", "--format", "fp32", "--out", file)
    assert "same class at 1.000 of the pixels" in command(export_main, *words).out
    found = []
    for given in ((out, "--model", "helpers.tiny:build", "--precision", "fp32"), (file,)):
        words = (*given, cover, "--quiet", "--json")
        found.append(json.loads(command(evaluate_main, *words).out))
    assert found[1]["classes"] == list(NAMES)
    assert found[1]["metrics"] == pytest.approx(found[0]["metrics"], abs=2e-3)
