"""Preparation on the device, against float64 arithmetic and the tables of `geoprep.speed`."""

import numpy as np
import pytest
import torch
from helpers.stores import write_store
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from geoprep.errors import UsageError
from geoprep.speed import BIN_TABLE, CHANNEL_TABLE
from geoprep.store.reader import StoreReader
from loaders import (
    BatchLoader,
    DeviceAugmentation,
    DevicePrep,
    Jitter,
    Normalize,
    RamTiles,
    SpeedTarget,
    band_statistics,
)
from loaders.targets import IGNORE_INDEX

EVERY_BYTE = torch.arange(256, dtype=torch.uint8).view(1, 16, 16)


def every_value(bands):
    return (
        EVERY_BYTE[:, None].expand(1, bands, 16, 16).contiguous(memory_format=torch.channels_last)
    )


@given(
    arrays(np.float64, 4, elements=st.floats(0, 255)),
    arrays(np.float64, 4, elements=st.floats(0.5, 120)),
)
def test_bf16_is_the_float64_result_rounded_once(mean, std):
    found = Normalize(mean, std, torch.bfloat16)(every_value(4))
    assert found.dtype == torch.bfloat16
    assert found.is_contiguous(memory_format=torch.channels_last)
    value = np.arange(256.0).reshape(1, 1, 16, 16)
    exact = (value - mean[:, None, None]) / std[:, None, None]
    # Half a unit in the last of bf16's eight bits, and a little for fp32 on the way.
    assert (abs(found.double().numpy() - exact) <= abs(exact) * 2.0**-8 * 1.01 + 1e-30).all()


@given(
    arrays(np.float64, 3, elements=st.floats(0, 255)),
    arrays(np.float64, 3, elements=st.floats(0.5, 120)),
)
def test_fp32_is_exact_to_the_last_bits_even_near_the_mean(mean, std):
    found = Normalize(mean, std)(every_value(3))
    assert found.dtype == torch.float32
    exact = (np.arange(256.0).reshape(1, 1, 16, 16) - mean[:, None, None]) / std[:, None, None]
    np.testing.assert_allclose(found.double(), exact, rtol=4e-7, atol=1e-30)


@pytest.mark.parametrize("targets", ["bins", "binary", "bin_index"])
def test_the_operators_for_cuda_give_the_same(monkeypatch, targets):
    prep = DevicePrep(Normalize([100.3] * 3, [50.0] * 3), SpeedTarget(targets), jitter=Jitter())
    image = every_value(3).expand(2, -1, -1, -1).contiguous(memory_format=torch.channels_last)
    given = {"image": image, "speed": EVERY_BYTE.expand(2, 16, 16), "key": torch.arange(2)}
    wanted = prep(given)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    found = prep(given)
    torch.testing.assert_close(found.image, wanted.image, rtol=4e-7, atol=1e-7)
    assert found.image.stride() == wanted.image.stride()
    assert torch.equal(found.target, wanted.target)
    assert found.target.stride() == wanted.target.stride()


@pytest.mark.parametrize("bands", [1, 3])
def test_both_memory_orders_give_the_same_values_with_jitter_of_each_sample(bands):
    image = torch.randint(0, 256, (2, bands, 5, 7), dtype=torch.uint8)
    jitter = torch.rand(2, bands, 1, 1) + 0.5, torch.rand(2, bands, 1, 1)
    normalize = Normalize([7.0] * bands, [3.0] * bands)
    last = normalize(image.contiguous(memory_format=torch.channels_last), *jitter)
    torch.testing.assert_close(last, normalize(image, *jitter), rtol=0, atol=0)
    assert last.is_contiguous(memory_format=torch.channels_last)


def test_a_band_that_never_varies_is_only_centred():
    found = Normalize([7.0], [0.0])(every_value(1))
    assert found.view(-1)[7] == 0
    assert torch.isfinite(found).all()


def test_statistics_of_several_stores_are_those_of_all_pixels(make_store):
    paths = [make_store(scenes=5, levels=(32,)), make_store(scenes=9, levels=(24,))]
    stores = [StoreReader.open(path) for path in paths]
    pixels = np.concatenate([RamTiles.load(s).image.reshape(-1, 3) for s in stores]).astype(float)
    mean, std = band_statistics(stores)
    np.testing.assert_allclose(mean, pixels.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(std, pixels.std(axis=0), rtol=1e-12)


def test_statistics_follow_the_bands_that_were_loaded(store):
    all_bands, two = band_statistics([store]), band_statistics([store], ("blue", "red"))
    assert two.mean.tolist() == all_bands.mean[[2, 0]].tolist()
    with pytest.raises(UsageError, match="has no band nir"):
        band_statistics([store], ("nir",))


def test_a_train_split_without_pixels_is_an_error(make_store):
    with pytest.raises(UsageError, match="no valid pixels"):
        DevicePrep.from_store(make_store(splits=(1,)))


def test_bins_are_cresis_seven_and_their_union():
    target = SpeedTarget("bins")(EVERY_BYTE)
    assert target.shape == (1, 8, 16, 16)
    assert (target.permute(0, 2, 3, 1).reshape(256, 8).numpy() == CHANNEL_TABLE).all()
    assert target.is_contiguous(memory_format=torch.channels_last)


def test_binary_is_any_road():
    binary = SpeedTarget("binary", torch.bfloat16)(EVERY_BYTE)
    assert binary.dtype == torch.bfloat16
    assert binary.view(-1).tolist() == [0.0] + [1.0] * 254 + [0.0]


def test_classes_are_bins_and_no_data_is_ignored_by_losses():
    target = SpeedTarget("bin_index")(EVERY_BYTE)
    assert (target.dtype, target.shape) == (torch.int64, (1, 16, 16))
    assert target.view(-1)[:254].tolist() == BIN_TABLE[:254].tolist()
    assert target.view(-1)[255] == IGNORE_INDEX == torch.nn.CrossEntropyLoss().ignore_index


@pytest.mark.parametrize(("targets", "known"), [("binary", True), ("bins", False)])
def test_a_road_of_unknown_speed_is_a_road_and_teaches_no_speed(targets, known):
    speed = torch.tensor([[[0, 25, 254, 255]]], dtype=torch.uint8)
    image = torch.full((1, 3, 1, 4), 9, dtype=torch.uint8)
    prep = DevicePrep(Normalize([0.0] * 3, [1.0] * 3), SpeedTarget(targets), pad_to=1)
    ready = prep({"image": image, "speed": speed})
    assert ready.valid[0, 0].tolist() == [True, True, known, False]
    assert ready.target[0, -1, 0, 2] == 1
    if targets == "bins":
        assert not ready.target[0, :7, 0, 2].any()
    assert SpeedTarget("bin_index")(speed)[0, 0].tolist() == [0, 3, IGNORE_INDEX, IGNORE_INDEX]


def test_channels_are_those_of_the_target():
    for kind, channels in (("bins", 8), ("binary", 1), ("bin_index", 8)):
        assert SpeedTarget(kind).channels == channels
    with pytest.raises(UsageError, match="'speed' is not one of"):
        SpeedTarget("speed")


@pytest.mark.parametrize(("side", "padded"), [(40, 64), (32, 32), (650, 672)])
def test_whole_tiles_are_padded_and_the_padding_is_not_valid(side, padded):
    tiles = RamTiles.from_arrays(
        np.full((2, side, side, 3), 9, np.uint8), np.full((2, side, side), 25, np.uint8)
    )
    batch = next(iter(BatchLoader(tiles, 2, shuffle=False)))
    prep = DevicePrep(Normalize([9.0] * 3, [2.0] * 3), SpeedTarget("bins"))
    image, target, valid = prep(batch)
    assert image.shape == (2, 3, padded, padded)
    assert target.shape == (2, 8, padded, padded)
    assert valid.sum() == 2 * side * side
    assert valid[:, :side, :side].all()
    assert not target[:, :, side:].any()
    assert not image[:, :, :side, :side].any()
    assert image.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("side", [1, 2, 7, 16, 31, 33, 650])
def test_padding_mirrors_the_image_as_prediction_does(side):
    image = np.random.default_rng(0).integers(0, 256, (2, side, side, 3), np.uint8)
    lacking = -side % 32
    expected = np.pad(image, ((0, 0), (0, lacking), (0, lacking), (0, 0)), "reflect")
    prep = DevicePrep(Normalize([9.0] * 3, [2.0] * 3), SpeedTarget("bins"))
    padded = prep.pad(torch.from_numpy(image).permute(0, 3, 1, 2))
    assert padded.is_contiguous(memory_format=torch.channels_last)
    assert (padded.permute(0, 2, 3, 1).numpy() == expected).all()


def test_a_dictionary_of_torchs_dataloader_serves_as_well(store_path):
    tiles = RamTiles.load(store_path)
    prep = DevicePrep.from_store(tiles.stores, targets="binary", dtype=torch.bfloat16)
    batch = next(iter(BatchLoader(tiles, 8, crop=32)))
    for one, other in zip(
        prep(batch), prep({"image": batch.image, "speed": batch.speed}), strict=True
    ):
        assert torch.equal(one, other)


def test_statistics_travel_in_a_checkpoint(store):
    prep = DevicePrep.from_store(store)
    blank = DevicePrep(Normalize([0.0] * 3, [1.0] * 3), SpeedTarget("bins"))
    blank.load_state_dict(prep.state_dict())
    batch = {"image": every_value(3), "speed": EVERY_BYTE}
    assert torch.equal(blank(batch).image, prep(batch).image)


def test_jitter_is_a_function_of_the_key_and_stays_in_its_bounds():
    key = torch.arange(500) * 0x1234567 - 9_000_000
    jitter = Jitter(brightness=0.3, contrast=0.2, gain=0.1)
    gain, bias = jitter(key, 3)
    assert torch.equal(gain[40:60], jitter(key[40:60], 3)[0])
    assert gain.shape == bias.shape == (500, 3, 1, 1)
    assert gain.min() >= 0.8 * 0.9
    assert gain.max() <= 1.2 * 1.1
    assert bias.abs().max() <= 0.3
    # Spread over the bounds, not lumped: the standard deviation of a uniform draw.
    assert bias.std() == pytest.approx(0.3 / 3**0.5, rel=0.1)
    assert bias.mean().abs() < 0.03
    ratio = gain[:, 0, 0, 0] / gain[:, 1, 0, 0]
    assert ratio.std() > 0.03  # each band has a gain of its own
    assert (bias[:, 0] == bias[:, 2]).all()


def test_jitter_changes_training_images_only_and_as_it_says():
    key = torch.tensor([123456789012345])
    batch = {"image": every_value(2), "speed": EVERY_BYTE, "key": key}
    prep = DevicePrep(Normalize([90.0, 70.0], [30.0, 40.0]), SpeedTarget("bins"), jitter=Jitter())
    gain, bias = Jitter()(key, 2)
    plain = prep.eval()(batch).image
    torch.testing.assert_close(prep.train()(batch).image, plain * gain + bias)
    assert not torch.equal(prep(batch).image, plain)


def test_jitter_that_could_turn_a_band_over_is_refused():
    with pytest.raises(UsageError, match=r"contrast=1\.5"):
        Jitter(contrast=1.5)


def test_preparation_is_one_graph_for_the_compiler(painted):
    changed = DeviceAugmentation(scale=1.3, rotate=9)
    random = {"jitter": Jitter(), "augmentation": changed}
    prep = DevicePrep(Normalize([9.0] * 3, [2.0] * 3), SpeedTarget("bins"), **random)
    batch = next(iter(BatchLoader(painted, 4, crop=20)))
    parts = {"image": batch.image, "speed": batch.speed, "key": batch.key}
    traced = torch.compile(prep, fullgraph=True, backend="eager")
    for one, other in zip(prep(parts), traced(parts), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("targets", ["bins", "bin_index"])
def test_targets_with_speeds_need_a_store_with_speeds(tmp_path, targets):
    store = write_store(tmp_path / "masks.zarr", scenes=4, speed_unit="none")
    with pytest.raises(UsageError, match=rf"`targets` {targets} needs speeds.*`targets` binary"):
        DevicePrep.from_store(store, targets=targets)
    assert DevicePrep.from_store(store, targets="binary").target.channels == 1
