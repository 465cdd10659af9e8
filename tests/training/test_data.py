"""Stores, folds, levels and residencies of runs."""

import re
from dataclasses import replace

import numpy as np
import pytest
from helpers.factory import build_of, texture, write_scene
from helpers.runs import SMALL, STAGED, rows
from helpers.stores import write_store

from geoprep.errors import StoreError, UsageError
from geoprep.store.reader import StoreReader
from loaders import DeviceTiles, Folds, StreamTiles, select
from training.checkpoint import load
from training.data import count_fold, differences, model_info, shared_ground, tiles_of
from training.run import parts
from training.settings import Config


def test_a_batch_larger_than_an_epoch_is_refused_with_the_largest_size(fit, out):
    small = ("--model", "helpers.tiny:build", "--crop", "32", "--crops-per-tile", "2")
    said = fit("--out", out, "--batch-size", 10000, network=small, status=2).err
    assert "48 samples do not fill one step of 10000 x 1 ranks" in said
    fits = re.search(r"use a smaller --batch-size \(at most (\d+)\)", said)[1]
    said = fit("--out", out, "--epochs", 1, "--batch-size", fits, network=small).out
    assert "1 step per epoch" in said


@pytest.mark.parametrize("option", [("--level", 32), ("--crop", 16), ("--epochs", 3)])
def test_stages_are_refused_beside_what_they_replace(fit, out, option):
    said = fit("--out", out, "--stages", "32@32:1", *option, network=STAGED, status=2).err
    assert f"leave out {option[0]}" in said


def test_a_store_without_labels_is_said_before_training_and_evaluation(store, tmp_path):
    image = write_scene(tmp_path, "a", texture(64, 64), labelled=False)
    unlabelled = build_of(tmp_path / "a.zarr", [image], val=0.0)
    with pytest.raises(UsageError, match=r"no scene of .*a\.zarr has a label: build it with"):
        model_info([unlabelled], model="m")
    with pytest.raises(UsageError, match=r"no scene of .*a\.zarr has a label: build it with"):
        tiles_of(model_info([store], model="m"), [unlabelled], "val")


def test_bands_are_chosen_by_name_or_number(store):
    assert model_info([store], model="m", bands="blue, 1").bands == ("blue", "red")
    with pytest.raises(UsageError, match="has no band 4; it has red, green, blue"):
        model_info([store], model="m", bands="4")


def test_stores_of_other_nodata_rules_are_noted(store):
    build = {"options": {"nodata": "7"}}
    other = StoreReader(store.location, store.document, replace(store.meta, build=build))
    info = model_info([store, other], model="m")
    assert info.nodata is None
    (note,) = differences(info, [store, other])
    assert "was built with `nodata` 7" in note


def test_stages_change_level_and_crop(fit, out):
    said = fit("--out", out, "--stages", "32@32:1,64@32:1", "--pictures", 0, network=STAGED).out
    assert [row["level"] for row in rows(out)] == ["32", "64"]
    facts = load(out / "best.pt").info
    assert (facts.level, facts.gsd_m) == (64, (0.5, 0.5))
    assert not (out / "pictures").exists()
    assert f"in {out}: curves.png, metrics.csv, tensorboard\n" in said


def test_a_store_without_validation_tiles_trains(fit, out, tmp_path):
    only = write_store(tmp_path / "only.zarr", scenes=2, splits=(0,))
    said = fit("--out", out, "--epochs", 1, store=only).out
    assert (out / "best.pt").exists()
    assert said.count("none for validation (best.pt is that of the last epoch)") == 1
    assert "nan" not in said
    assert not said.split("epoch 1/")[1].splitlines()[0].endswith("best")


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """Return a store whose roads have no speeds."""
    return write_store(tmp_path_factory.mktemp("masked") / "m.zarr", scenes=4, speed_unit="none")


def test_a_store_without_speeds_trains_binary_targets_with_a_note(fit, out, masked):
    fit("--out", out, "--epochs", 1, store=masked)
    assert load(out / "best.pt").info.targets == "binary"
    assert "(binary: the roads of a store have no speeds)" in (out / "log.txt").read_text()
    fit("--resume", out, "--epochs", 2, store=masked)


def test_speed_targets_are_refused_for_a_store_without_speeds(fit, out, masked):
    said = fit("--out", out, "--targets", "bins", store=masked, status=2).err
    assert f"--targets bins needs speeds, but the roads of {masked} have none" in said
    assert "use --targets binary" in said


def test_compressed_tiles_train(fit, out):
    fit("--out", out, "--epochs", 1, "--residency", "compressed")


@pytest.mark.parametrize("fits", [False, True])
def test_validation_that_the_device_cannot_hold_streams(fit, out, tmp_path, monkeypatch, fits):
    room = (24 + 8 * fits) * 64 * 64 * 4
    monkeypatch.setattr(DeviceTiles, "room", staticmethod(lambda device: room))
    said = fit("--out", out, "--epochs", 1, "--residency", "device").out
    beside = "streamed: they do not fit on cpu beside those for training"
    assert f"8 for validation{'' if fits else f' ({beside})'};" in " ".join(said.split())
    monkeypatch.setattr(DeviceTiles, "room", staticmethod(lambda device: 24 * 64 * 64 * 4 - 1))
    said = fit("--out", tmp_path / "other", "--epochs", 1, "--residency", "device", status=2).err
    error = " ".join(said.split())
    assert "24 tiles of level 64 take 0.393 MB; cpu has 0.786 MB free" in error
    assert "--residency ram" in error


def test_compressed_tiles_stay_compressed(store):
    facts = model_info((store,), model="resnet34-unet")
    assert "MB compressed" in repr(tiles_of(facts, (store,), "val", residency="compressed"))


def test_bands_of_a_store_are_found_by_their_names(tmp_path):
    called = ("B02 (blue)", "B03 (green)", "Band 4 - Red")
    plain = write_store(tmp_path / "a.zarr")
    facts = model_info((StoreReader.open(plain),), model="resnet34-unet")
    other = write_store(tmp_path / "b.zarr", bands=called[::-1], order=(2, 1, 0))
    pixels = [tiles_of(facts, (store,), "val").image for store in (plain, other)]
    np.testing.assert_array_equal(*pixels)
    unnamed = write_store(tmp_path / "c.zarr", bands=("band 1", "band 2", "band 3"))
    with pytest.raises(UsageError, match="was trained on bands red, green, blue"):
        tiles_of(facts, (unnamed,), "val")
    facts = model_info((StoreReader.open(unnamed),), model="resnet34-unet")
    layers = write_store(tmp_path / "d.zarr", bands=("layer_1", "layer_2", "layer_3"))
    pixels = [tiles_of(facts, (store,), "val").image for store in (unnamed, layers)]
    np.testing.assert_array_equal(*pixels)


def test_a_damaged_tile_of_a_fold_is_named(tmp_path):
    store = write_store(tmp_path / "folded.zarr", scenes=6, splits=(0,) * 6)
    shard = next((store / "64" / "image" / "c").rglob("0/0/0/0"))
    shard.write_bytes(shard.read_bytes()[:-40])
    with pytest.raises(StoreError, match=r"folded\.zarr/64/image/c/.*verify"):
        count_fold(StoreReader.open(store), Folds(3, 1))


def test_statistics_of_a_fold_leave_out_its_validation_scenes(fit, out, tmp_path):
    """ModelInfo of a fold are those of a store that has these scenes alone to train on."""
    store = write_store(tmp_path / "folded.zarr", scenes=6, splits=(0, 0, 0, 0, 0, 1))
    folded = StoreReader.open(store)
    said = fit("--out", out, "--epochs", 1, "--folds", 3, "--fold", 1, store=store).out
    assert "fold 1 of 3 for validation" in said
    facts = load(out).info
    assert (facts.folds, facts.fold) == (3, 1)
    tiles = select(folded, "train", Folds(3, 1)).tiles
    pixels = folded.image()[:][tiles].reshape(-1, 3).astype(float)
    valid = [band[band > 0] for band in pixels.T]
    assert facts.mean == pytest.approx([band.mean() for band in valid])
    assert facts.std == pytest.approx([band.std() for band in valid])
    speed = folded.speed()[:][tiles]
    fast = speed[(speed > 60) & (speed < 255)]
    assert facts.class_mph[6] == pytest.approx(fast.mean() if len(fast) else 65.5)
    whole = tmp_path / "whole"
    fit("--out", whole, "--epochs", 1, store=store)
    assert load(whole).info.mean != facts.mean
    assert load(whole).info.folds is None
    refused = fit("--out", whole, "--fold", 0, "--overwrite", store=store, status=2).err
    assert "--fold is one of --folds" in refused


def test_differences_between_stores_are_noted(fit, out, tmp_path):
    one = write_store(tmp_path / "one.zarr", scenes=4)
    other = write_store(tmp_path / "other.zarr", scenes=4, rescale="city", gsd_m=(1.0, 1.0))
    said = fit(str(other), "--out", out, "--epochs", 1, store=one).out
    assert "other.zarr was rescaled by the rule 'city', the model's data by 'none'" in said
    assert "pixels of" in said
    assert "are 1 m wide, those of the model 0.5 m" in said


def test_limits_of_a_city_are_in_the_checkpoint(fit, out, tmp_path):
    store = write_store(tmp_path / "city.zarr", scenes=4, rescale="city", limits=(20.0, 900.0))
    fit("--out", out, "--epochs", 1, store=store)
    assert load(out).info.limits == ((20.0, 900.0),) * 3


def test_streams_share_one_limit(fit, out, monkeypatch):
    opened = []
    stream = StreamTiles.open

    def spied(*args, **options):
        opened.append((stream(*args, **options), args))
        return opened[-1][0]

    monkeypatch.setattr(StreamTiles, "open", spied)
    limited = ("--residency", "stream", "--ram-limit", "64MB")
    fit("--out", out, "--epochs", 1, *limited)
    (train, _), (_, args) = opened
    assert args[1] == "val"
    assert args[3] is train


def test_the_header_counts_samples_and_steps_of_an_epoch(fit, tmp_path):
    whole = ("--model", "helpers.tiny:build", "--crop", "64", "--batch-size", "4")
    said = fit("--out", tmp_path / "a", "--epochs", 1, network=whole).out
    assert "24 per epoch, 1 per tile (crops are not smaller" in said
    assert re.search(r"training .* 1 epoch; seed 0", said)
    few = ("--min-road", "0.178", "--crop", "64", "--batch-size", "1")
    said = fit("--out", tmp_path / "b", "--epochs", 1, *few, network=SMALL).out
    found = re.search(r"(\d+) per epoch, 1 per tile of (\d+) tiles with", said)
    assert found
    assert 0 < int(found[1]) == int(found[2]) < 24


def test_a_stream_too_small_for_a_batch_names_its_limit(fit, out):
    large = ("--residency", "stream", "--ram-limit", "0.6MB", "--batch-size", "24")
    assert "--ram-limit of 0.6 MB is too small" in fit("--out", out, *large, status=2).err


def test_ranks_above_zero_read_no_pixels_of_folds(store, monkeypatch):
    """They get the histograms that rank 0 counted."""
    counted = {}
    config = Config(stores=(str(store.location),), folds=3, fold=1)
    monkeypatch.setattr(parts, "on_rank_zero", lambda make: counted.setdefault("zero", make()))
    (first,) = parts.open_data(config)
    monkeypatch.setattr(parts, "on_rank_zero", lambda make: counted["zero"])
    monkeypatch.setattr(StoreReader, "image", lambda *_: pytest.fail("pixels are read again"))
    (second,) = parts.open_data(config)
    assert (first.histogram_band == second.histogram_band).all()
    assert (first.histogram_speed == second.histogram_speed).all()


def test_a_fold_without_the_number_of_folds_is_refused(fit, out):
    assert "--fold 1 needs --folds" in fit("--out", out, "--fold", 1, status=2).err
    assert not (out).exists()


def test_stores_of_the_same_ground_with_other_splits_are_noted(fit, out, tmp_path):
    one, other = (
        write_store(tmp_path / f"{name}.zarr", splits=splits)
        for name, splits in (("one", (0, 0, 0, 1)), ("other", (1, 0, 0, 0)))
    )
    assert "show ground" not in "".join(shared_ground([StoreReader.open(one)] * 2, None))
    said = fit("--out", out, "--epochs", 1, other, store=one).out
    assert re.search(r"note: \d+ training tiles of \S+ show ground of validation tiles of", said)
