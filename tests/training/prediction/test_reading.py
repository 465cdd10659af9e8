"""How an image is read: its bands, grid and limits; the pixels under each row of windows."""

import tracemalloc
from contextlib import closing, nullcontext
from dataclasses import asdict, replace

import numpy as np
import pytest
import rasterio
import torch
from affine import Affine
from helpers.predict_cases import FACTS, GSD, PLACE, pixels, predict_options, write_image
from rasterio.enums import ColorInterp

from geoprep import build_zarr
from geoprep.errors import ImageError, UsageError
from geoprep.imagery import resample
from geoprep.imagery import rows as rows_of_scenes
from geoprep.imagery.counts import count_source
from geoprep.imagery.decoding import ImageWindow, read_pixels
from geoprep.imagery.description import NOTHING_STATED, Stated
from geoprep.imagery.resample import pixel_edges, render
from geoprep.imagery.rescale import SIZES, lookup_tables, percentile_limits
from geoprep.imagery.wide import WIDE, held_dtype, is_held_wide
from geoprep.store.reader import StoreReader
from training.checkpoint import ModelInfo
from training.data import model_info
from training.prediction import images
from training.prediction.device import Device
from training.prediction.host import Host
from training.prediction.images import inspect_image, look, scene_rows
from training.prediction.predict_options import check_gsd, known_limits
from training.prediction.window_rows import WindowRows, prefetched
from training.prediction.windows import WindowGrid, plan_axis

AS_IS = np.tile([0.0, 255.0], (3, 1))


def inspected(path, facts=FACTS, stated=NOTHING_STATED, **options):
    return inspect_image(str(path), facts, predict_options(**options), stated=stated)


def looked(source, folder, *, ahead=False):
    """Return what reads an image, and its limits, after a look."""
    mask = folder / "valid.bits"
    pixels = scene_rows(source, mask, ahead=ahead)
    return pixels, look(source, pixels, mask)


def read_all(source, pixels, limits, window, overlap):
    """Return the image put together from its rows of windows, and those."""
    rows, columns = (plan_axis(n, window, overlap) for n in (source.height, source.width))
    whole = np.zeros((source.height, source.width, len(source.scene.bands)), np.uint8)
    valid = np.zeros((source.height, source.width), np.uint8)
    grid = WindowGrid(rows, columns, 1)
    device = Device(torch.device("cpu"))
    on_device = WindowRows(source, pixels.again(), limits, grid, device).read()
    found = list(WindowRows(source, pixels, limits, grid, Host()).read())
    for row, same in zip(found, on_device, strict=True):
        assert row.full == same.full
        for part in ("image", "valid", "seen"):
            np.testing.assert_array_equal(getattr(row, part), getattr(same, part))
        top = rows.starts[row.number]
        part = slice(top, top + rows.side)
        height = min(rows.side, source.height - top)
        assert row.image.shape[:2] == (rows.side, columns.covered)
        whole[part] = row.image[:height, : source.width]
        valid[part] = row.valid[:height]
    return whole, valid, found


@pytest.mark.parametrize(("height", "width"), [(300, 170), (128, 128), (20, 500), (7, 3)])
def test_window_rows_contain_the_image(tmp_path, height, width, monkeypatch):
    monkeypatch.setattr(images, "READ_BYTES", 37 * width * 4)
    monkeypatch.setattr(rows_of_scenes, "_STRIP_ROWS", 20)
    values = pixels(height, width)
    values[: height // 2, : width // 3] = 0
    source = inspected(write_image(tmp_path / "a.tif", values))
    whole, valid, _ = read_all(source, looked(source, tmp_path)[0], AS_IS, 96, 32)
    np.testing.assert_array_equal(whole, values)
    np.testing.assert_array_equal(valid != 0, values.any(axis=2))


@pytest.mark.parametrize(("height", "width"), [(40, 50), (3, 33), (1, 4)])
def test_small_image_is_mirrored_beyond_its_edge(tmp_path, height, width):
    values = pixels(height, width)
    source = inspected(write_image(tmp_path / "a.tif", values))
    (row,) = read_all(source, looked(source, tmp_path)[0], AS_IS, 96, 32)[2]
    beyond = [(0, n - m) for n, m in zip(row.image.shape, values.shape, strict=True)]
    np.testing.assert_array_equal(row.image, np.pad(values, beyond, mode="reflect"))


@pytest.mark.parametrize("factor", [2, 1.37, 0.6])
def test_resampling_is_that_of_a_store(tmp_path, factor):
    values = pixels(210, 155)
    values[50:80] = 0
    path = write_image(tmp_path / "a.tif", values)
    source = inspected(path, replace(FACTS, gsd_m=(GSD * factor, GSD * factor)))
    whole, valid, _ = read_all(source, looked(source, tmp_path)[0], AS_IS, 96, 32)
    scale_y, scale_x = source.scales
    ys = pixel_edges(0, source.height, 1, scale_y, 210)
    xs = pixel_edges(0, source.width, 1, scale_x, 155)
    with rasterio.open(path) as dataset:
        read = read_pixels(dataset, (1, 2, 3))
    wanted, wanted_valid = np.zeros_like(whole), np.zeros_like(valid)
    tables = lookup_tables(AS_IS, "uint8")
    render(read, tables, ys, xs, wanted, wanted_valid)
    np.testing.assert_array_equal(whole, wanted)
    np.testing.assert_array_equal(valid, wanted_valid)


def test_resampling_holds_little_more_than_two_rows_of_windows(tmp_path, monkeypatch):
    """The row that is read and the one above it; means and bytes take some rows at a time."""
    path = write_image(tmp_path / "a.tif", pixels(240, 1500))
    source = inspected(path, replace(FACTS, gsd_m=(GSD * 0.3, GSD * 0.3)))
    reader = looked(source, tmp_path)[0]
    axes = [plan_axis(length, 256, 32) for length in (source.height, source.width)]
    reading = WindowRows(source, reader, AS_IS, WindowGrid(*axes, 1), Host())
    wanted = [row.image for row in reading.read()]
    monkeypatch.setattr(images, "READ_BYTES", 1 << 17)
    monkeypatch.setattr(resample, "_MEANS_BYTES", 1 << 18)
    found = reading.again(reading.grid, Host()).read()
    tracemalloc.start()
    for row, same in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(row.image[::50], same[::50])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(wanted) > 2
    assert peak < 2.3 * (row.image.nbytes + row.valid.nbytes), peak


@pytest.mark.parametrize(
    ("factor", "gsd", "shape", "scale"),
    [
        (1.08, "checkpoint", (210, 155), 1.0),
        (0.93, "checkpoint", (210, 155), 1.0),
        (1.95, "checkpoint", (105, 78), 2.0),
        (1.5, "checkpoint", (140, 103), 1.5),
        (3.0, "image", (210, 155), 1.0),
        (1.0, "0.62", (105, 78), 2.0),
        (1.0, "0.33", (197, 146), 210 / 197),
    ],
)
def test_grid_is_that_of_the_image_or_resampled(tmp_path, factor, gsd, shape, scale):
    path = write_image(tmp_path / "a.tif", pixels(210, 155))
    facts = replace(FACTS, gsd_m=(GSD * factor, GSD * factor))
    source = inspected(path, facts, gsd=gsd, grid="model")
    assert (source.height, source.width) == source.shape == shape
    assert inspected(path, facts, gsd=gsd).shape == (210, 155)
    assert (source.height, source.width) == shape
    assert source.scales[0] == pytest.approx(scale)
    assert source.resampled == (scale != 1.0)
    assert source.transform.c == PLACE.c
    assert source.transform.a == pytest.approx(GSD * source.scales[1])


def test_square_degrees_are_resampled_to_the_trained_metres(tmp_path):
    degrees = Affine(2.7e-6, 0, -115.17, 0, -2.7e-6, 36.24)
    path = write_image(tmp_path / "a.tif", pixels(100, 100), "EPSG:4326", degrees)
    assert inspected(path, replace(FACTS, gsd_m=(0.243, 0.3))).scales == (1.0, 1.0)
    source = inspected(path, replace(FACTS, gsd_m=(0.3, 0.3)))
    assert (source.height, source.width) == (100, 81)


@pytest.mark.parametrize(
    ("names", "colours", "bands"),
    [
        (("blue", "green", "red"), None, (3, 2, 1)),
        (("B02", "B03", "B04"), ("blue", "green", "red"), (3, 2, 1)),
        (("Band 1 (Blue)", "Band 2 (Green)", "Band 3 (Red)"), None, (3, 2, 1)),
        (("nir", "red", "green"), None, "blue"),
        (("nir", "red", "green"), ("red", "green", "blue"), "blue"),
        (("blue", "green", "nir"), None, "red"),
        (("B4", "B3", "B2"), None, "red or green or blue"),
        ((None, None, None), None, (1, 2, 3)),
    ],
)
def test_bands_of_other_names_are_refused(tmp_path, names, colours, bands):
    path = write_image(tmp_path / "a.tif", pixels(8, 8), photometric="minisblack")
    with rasterio.open(path, "r+") as file:
        file.descriptions = names
        file.colorinterp = [ColorInterp[name] for name in colours or ["undefined"] * 3]
    if isinstance(bands, str):
        with pytest.raises(ImageError, match=f"No band is called {bands}. Choose them"):
            inspected(path)
        assert inspected(path, bands="1,2,3").scene.bands == (1, 2, 3)
    else:
        source = inspected(path)
        assert source.scene.bands == bands
        assert ("read as red, green, blue" in "".join(source.notes)) == (
            names == (None, None, None)
        )


def test_bands_are_found_by_name_then_by_number(tmp_path):
    path = write_image(
        tmp_path / "a.tif", pixels(8, 8, bands=4), photometric="minisblack", alpha="no"
    )
    with pytest.raises(ImageError, match=r"needs 3: red, green, blue.*`bands`, for example 1,2,3"):
        inspected(path)
    assert inspected(path, bands="4,1,2").scene.bands == (4, 1, 2)
    with pytest.raises(ImageError, match="no band 7"):
        inspected(path, bands="4,1,7")
    with pytest.raises(UsageError, match="names 2"):
        inspected(path, bands="4,1")
    with rasterio.open(path, "r+") as dataset:
        dataset.descriptions = ("Blue", "nir", "Red", "Green")
    assert inspected(path).scene.bands == (3, 4, 1)
    assert inspected(path, bands="NIR,2,red").scene.bands == (2, 2, 3)
    few = write_image(tmp_path / "b.tif", pixels(8, 8, bands=1))
    with pytest.raises(ImageError, match=r"needs 3: red, green, blue\. Use an image"):
        inspected(few)


def test_a_fourth_band_that_is_left_out_as_alpha_is_mentioned(tmp_path):
    path = write_image(tmp_path / "a.tif", pixels(40, 40, 4), photometric="rgb", alpha="yes")
    assert "band 4 is called alpha" in "".join(inspected(path).notes)
    assert inspected(path, bands="4,2,1").notes == ()


def test_image_without_crs_is_refused_with_advice(tmp_path):
    path = write_image(tmp_path / "a.tif", pixels(8, 8), crs=None)
    with pytest.raises(ImageError, match=r"no CRS.*gdal_edit.*`allow_no_crs`"):
        inspected(path)
    source = inspected(path, allow_no_crs=True)
    assert (source.crs, source.gsd_m) == (None, None)


def test_image_without_crs_is_resampled_by_its_pixel_size(tmp_path):
    path = write_image(tmp_path / "a.tif", pixels(80, 60), crs=None)
    metres = FACTS.gsd_m[0]
    source = inspected(path, pixel_size=metres / 2)
    assert (source.height, source.width, source.scales) == (40, 30, (2.0, 2.0))
    assert source.gsd_m == pytest.approx((metres, metres))
    assert (source.crs, source.transform) == (None, Affine.identity())  # nor has its map a place
    placed = write_image(tmp_path / "b.tif", pixels(80, 60))
    assert inspected(placed, pixel_size=99) == inspected(placed)


def test_limits_of_a_scene_equal_those_of_a_store(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "READ_BYTES", 50 * 70 * 8)
    values = pixels(300, 70, dtype="uint16", top=2000)
    values[:40] = 0
    path = write_image(tmp_path / "a.tif", values)
    source = inspected(path, rescale="scene")
    assert known_limits(replace(FACTS, rescale="scene"), "checkpoint") is None
    wanted = np.percentile(values[40:].reshape(-1, 3), (2, 98), axis=0).T
    np.testing.assert_array_equal(looked(source, tmp_path)[1], wanted)
    monkeypatch.setattr(images, "_MOST_COUNTED", 300 * 70 / 2)
    monkeypatch.setattr(images, "_COUNTED_ROWS", 40)  # rows 80 to 119, 160 to 199, 240 to 279
    rows = np.arange(300)
    wanted = np.percentile(values[(rows >= 40) & (rows // 40 % 2 == 0)], (2, 98), axis=(0, 1)).T
    np.testing.assert_array_equal(looked(source, tmp_path)[1], wanted)
    np.testing.assert_array_equal(known_limits(FACTS, "5,600"), [[5, 600]] * 3)
    with pytest.raises(ImageError, match=r"uint16.*`rescale` scene, or LO,HI"):
        inspected(path)


@pytest.mark.parametrize(("rule", "collar"), [(255, 255), ("none", 0), (None, 0)])
def test_nodata_is_that_of_the_store_that_a_model_was_trained_on(tmp_path, rule, collar):
    values = np.maximum(pixels(128, 128), 1)
    values[:30] = collar
    image = write_image(tmp_path / "images" / "a.tif", values)
    label = write_image(tmp_path / "labels" / "a.tif", values[..., :1])
    folders = {"images": image.parent, "labels": label.parent, "label_values": "1"}
    build_zarr(**folders, tile=64, val=0, nodata=rule, rescale="scene", out=tmp_path / "a.zarr")
    store = StoreReader.open(tmp_path / "a.zarr")
    info = ModelInfo.from_plain(asdict(model_info([store], model="resnet34-unet")))
    source = inspected(image, info)
    reader, limits = looked(source, tmp_path)
    np.testing.assert_array_equal(limits, store.scenes.limits[0])
    assert source == (inspected(image, nodata=str(rule)) if rule else inspected(image))
    _, valid, _ = read_all(source, reader, AS_IS, 64, 32)
    assert valid[:30].any() == (rule == "none")
    assert valid[30:].all()


@pytest.mark.parametrize("metres", [GSD, 1.7 * GSD, 0.6 * GSD])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_decoded_rows_are_those_of_the_image(tmp_path, monkeypatch, metres, dtype):
    monkeypatch.setattr(images, "READ_BYTES", 20 * 150 * 4)
    monkeypatch.setattr(rows_of_scenes, "_STRIP_ROWS", 20)
    values = pixels(170, 150, dtype=dtype)
    values[40:55, :30] = 0
    path = write_image(tmp_path / "a.tif", values)
    source = inspected(path, rescale="scene", gsd=str(metres))
    kept, limits = looked(source, tmp_path)
    monkeypatch.setattr(rows_of_scenes, "_MOST_BYTES", values.nbytes - 1)
    again, same = looked(source, tmp_path)
    np.testing.assert_array_equal(limits, same)
    wanted = read_all(source, again, limits, 64, 32)
    path.unlink()  # nothing is read again
    monkeypatch.setattr(rows_of_scenes, "open_image", lambda *_: nullcontext())
    for array, expected in zip(read_all(source, kept, limits, 64, 32)[:2], wanted[:2], strict=True):
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_black_is_nodata_where_a_store_of_the_image_has_it(tmp_path, monkeypatch, dtype, kept):
    monkeypatch.setattr(rows_of_scenes, "_STRIP_ROWS", 10)
    if not kept:
        monkeypatch.setattr(rows_of_scenes, "_MOST_BYTES", 20 * 150 * 3)
    values = pixels(170, 150).astype(dtype)
    values[:60, :30] = 0
    values[40:120, 60:140] = 0  # within: imagery
    path = write_image(tmp_path / "a.tif", values)
    source = inspected(path, rescale="scene", gsd="image")
    assert source.scene.black_decides
    reader, limits = looked(source, tmp_path)
    with rasterio.open(path) as dataset:
        read = read_pixels(dataset, (1, 2, 3))
    np.testing.assert_array_equal(read.valid[40:120, 60:140], 1)
    np.testing.assert_array_equal(limits, percentile_limits(count_source(read)))
    for every in (reader, scene_rows(source, tmp_path / "valid.bits", ahead=True)):
        whole, valid, _ = read_all(source, every, limits, 64, 32)
        np.testing.assert_array_equal(valid, read.valid)
        assert not whole[:60, :30].any()
        assert whole[valid != 0].all()
    tagged = inspected(write_image(tmp_path / "b.tif", values, nodata=0), rescale="scene")
    assert not tagged.scene.black_decides


@pytest.mark.parametrize("scale", [1.0, 2.0, 1.37])
@pytest.mark.parametrize("dtype", [*SIZES, *WIDE])
def test_a_device_makes_the_bytes_of_the_host(dtype, scale):
    values = pixels(74, 96, dtype=held_dtype(dtype), top=250)
    valid = (pixels(74, 96, 1, seed=1)[..., 0] > 90).astype(np.uint8)
    values[valid == 0] = np.nan if is_held_wide(values) else 0
    tables = lookup_tables(np.array([[20.0, 200.0], [240.0, 10.0], [0.0, 255.0]]), dtype)
    edges = [pixel_edges(0, int(n / scale), 1, scale, n) for n in valid.shape]
    for of_window in (valid, None):
        known = values if of_window is not None else np.nan_to_num(values)
        given = ImageWindow(known, of_window), tables, *edges
        found, seen = Device(torch.device("cpu")).render(*given)
        wanted, wanted_seen = Host().render(*given)
        np.testing.assert_array_equal(seen, wanted_seen)
        np.testing.assert_allclose(found.numpy().astype(int), wanted, atol=1)
        assert (found.numpy() == wanted).mean() > 0.999


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "fine"])
def test_invalid_pixel_sizes_are_refused(text):
    with pytest.raises(UsageError, match="`gsd`"):
        check_gsd(text)


def test_prefetched_items_and_errors_arrive_in_order_and_the_source_is_closed():
    closed = []

    def items():
        try:
            yield 1
            yield 2
            raise ValueError("third")
        finally:
            closed.append(True)

    with closing(prefetched(items())) as coming:
        assert [next(coming), next(coming)] == [1, 2]
        with pytest.raises(ValueError, match="third"):
            next(coming)
    with closing(prefetched(items())) as coming:
        assert next(coming) == 1
    assert closed == [True, True]


@pytest.mark.parametrize(
    ("limits_of", "dtype", "units", "limits"),
    [
        ("unit", "float32", None, (0, 0.5)),
        ("unit", "uint16", (0.0001, -0.1), (1000, 6000)),
        *(("unit", dtype, None, None) for dtype in ("uint8", "uint16", "int16")),
        ("integers", "uint16", None, (0, 0.5)),
        ("integers", "int16", (0.0001, -0.1), (0, 0.5)),  # numbers as they are stored
        *(("integers", dtype, None, None) for dtype in ("uint8", "float32")),
        ("", "uint16", (0.0001, -0.1), (0, 0.5)),  # of a model that does not tell
    ],
)
@pytest.mark.parametrize("rule", ["0,0.5", "city"])
@pytest.mark.parametrize("by", ["file", "item"])
def test_limits_belong_to_a_kind_of_values(tmp_path, limits_of, dtype, units, limits, rule, by):
    path = write_image(tmp_path / "a.tif", pixels(8, 8, dtype=dtype, top=100))
    stated = Stated(units=(units,) if units and by == "item" else ())
    if units and by == "file":
        with rasterio.open(path, "r+") as file:
            file.scales, file.offsets = [[value] * 3 for value in units]
    facts = replace(FACTS, rescale=rule, limits_of=limits_of)
    facts = replace(facts, limits=((0, 0.5),) * 3) if rule == "city" else facts
    if limits is None:
        with pytest.raises(ImageError, match=f"a.tif is {dtype}, and the limits of the model"):
            inspected(path, facts, stated)
        assert inspected(path, facts, stated, rescale="scene").limits is None
    else:
        np.testing.assert_allclose(inspected(path, facts, stated).limits, [limits] * 3)
    chosen = inspected(path, facts, stated, rescale="0,0.25").limits  # in the unit of the image
    low, high = ((0 - units[1]) / units[0], (0.25 - units[1]) / units[0]) if units else (0, 0.25)
    np.testing.assert_allclose(chosen, [[low, high]] * 3)
