"""Masks as labels: where they lie, and what is read of them."""

import numpy as np
import pytest
import rasterio
from affine import Affine
from helpers.rasters import write_raster
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rasterio.warp import Resampling, calculate_default_transform, reproject

from geoprep.crs import LONLAT, transformer, turn_of
from geoprep.errors import LabelError
from geoprep.grid import Grid, SceneWindow
from geoprep.labels import mask_files
from geoprep.labels.downsampling import majority
from geoprep.labels.mask_files import read_mask, unlabelled_pixels
from geoprep.labels.raster_rules import make_class_rule, make_mask_rule
from geoprep.speed import NODATA, UNKNOWN_SPEED

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

UTM = "EPSG:32637"
GRID = Grid(80, 100, Affine(0.5, 0, 412_000, 0, -0.5, 6_174_000), UTM)
WHOLE = SceneWindow(0, 0, 80, 100)
RULE = make_mask_rule("1", None, None)


def drawn(height=80, width=100):
    mask = np.zeros((height, width), np.uint8)
    mask[20:27] = 1
    mask[:, 61:66] = 1
    mask[50:60, 10:20] = 9
    return mask


def write(path, mask, transform=None, crs=None, **profile):
    driver = "PNG" if path.suffix == ".png" else "GTiff"
    place = {"transform": transform or Affine.identity(), "crs": crs}
    return str(write_raster(path, mask, driver=driver, **place, **profile))


def expected(mask):
    return np.where(mask == 1, UNKNOWN_SPEED, 0).astype(np.uint8)


@pytest.mark.parametrize(("suffix", "crs"), [("png", None), ("tif", None), ("tif", UTM)])
def test_a_mask_without_a_place_lies_on_its_image_pixel_by_pixel(tmp_path, suffix, crs):
    """As `build-zarr` treats images and `vectorize` rasters: a CRS alone is no georeference."""
    label = write(tmp_path / f"a_mask.{suffix}", drawn(), crs=crs)
    codes, notes = read_mask(label, RULE, GRID, WHOLE)
    np.testing.assert_array_equal(codes, expected(drawn()))
    assert notes == {}
    part, _ = read_mask(label, RULE, GRID, SceneWindow(15, 40, 30, 50))
    np.testing.assert_array_equal(part, expected(drawn())[15:45, 40:90])


def test_a_mask_without_a_place_and_of_another_size_is_refused(tmp_path):
    label = write(tmp_path / "a_mask.png", drawn(40, 50))
    with pytest.raises(LabelError, match=r"50 x 40 pixels, its.*100 x 80.*georeference both"):
        read_mask(label, RULE, GRID, WHOLE)


def test_a_mask_of_other_pixels_gives_the_nearest(tmp_path):
    """Half as fine, and shifted by whole pixels of its own: 5 m to the west and north."""
    coarse = drawn()[::2, ::2]
    shifted = GRID.transform * Affine.translation(-10, -10) * Affine.scale(2)
    padded = np.pad(coarse, ((5, 0), (5, 0)))
    label = write(tmp_path / "a.tif", padded, shifted, UTM)
    codes, _ = read_mask(label, RULE, GRID, WHOLE)
    np.testing.assert_array_equal(codes, expected(coarse.repeat(2, axis=0).repeat(2, axis=1)))


def test_a_mask_in_another_crs_is_put_onto_the_image_as_gdal_does(tmp_path):
    place, width, height = calculate_default_transform(UTM, "EPSG:4326", 100, 80, *GRID.bounds)
    mask = np.full((height, width), 7, np.uint8)
    reproject(
        drawn(), mask, src_transform=GRID.transform, src_crs=UTM, dst_transform=place,
        dst_crs="EPSG:4326", dst_nodata=7, resampling=Resampling.nearest,
    )  # fmt: skip
    label = write(tmp_path / "a.tif", mask, place, "EPSG:4326", nodata=7)
    codes, _ = read_mask(label, RULE, GRID, WHOLE)
    back = np.full((80, 100), NODATA, np.uint8)
    reproject(
        mask, back, src_transform=place, src_crs="EPSG:4326", src_nodata=7,
        dst_transform=GRID.transform, dst_crs=UTM, dst_nodata=NODATA,
    )  # fmt: skip
    np.testing.assert_array_equal(codes == UNKNOWN_SPEED, back == 1)
    np.testing.assert_array_equal(codes == NODATA, back == NODATA)
    assert ((codes == UNKNOWN_SPEED) == (drawn() == 1)).mean() > 0.95
    pieces = [read_mask(label, RULE, GRID, SceneWindow(row, 0, 40, 100))[0] for row in (0, 40)]
    assert (np.concatenate(pieces) != codes).mean() < 0.001  # GDAL bends the way in between


def test_what_a_mask_does_not_reach_is_unknown(tmp_path):
    moved = GRID.transform * Affine.translation(30, 0)
    label = write(tmp_path / "a.tif", drawn(), moved, UTM)
    codes, _ = read_mask(label, RULE, GRID, WHOLE)
    assert (codes[:, :30] == NODATA).all()
    np.testing.assert_array_equal(codes[:, 30:], expected(drawn())[:, :70])


def test_a_mask_with_a_finer_pixel_is_read_in_parts(tmp_path, monkeypatch):
    fine = drawn().repeat(4, axis=0).repeat(4, axis=1)
    label = write(tmp_path / "a.tif", fine, GRID.transform * Affine.scale(0.25), UTM)
    monkeypatch.setattr(mask_files, "_MOST_PIXELS", 30_000)
    codes, _ = read_mask(label, RULE, GRID, WHOLE)
    np.testing.assert_array_equal(codes, expected(drawn()))


def test_a_mask_that_lies_elsewhere_is_refused_with_both_places(tmp_path):
    label = write(tmp_path / "a.tif", drawn(), GRID.transform * Affine.translation(900, 0), UTM)
    told = r"a\.tif: does not overlap its image; the mask is at 412450.*412000"
    with pytest.raises(LabelError, match=told):
        read_mask(label, RULE, GRID, WHOLE)


def test_a_tag_of_0_is_noticed(tmp_path):
    label = write(tmp_path / "a.tif", drawn(), GRID.transform, UTM, nodata=0)
    codes, notes = read_mask(label, RULE, GRID, WHOLE)
    np.testing.assert_array_equal(codes, expected(drawn()))
    assert notes == {"mask tagged nodata 0, read as no road": 1}


def test_palette_and_alpha_are_found_in_the_file(tmp_path):
    path = write(tmp_path / "a.tif", drawn(), GRID.transform, UTM, photometric="palette")
    with rasterio.open(path, "r+") as file:
        file.write_colormap(1, {0: (0, 0, 0), 1: (255, 0, 0), 9: (0, 255, 0)})
    codes, _ = read_mask(path, make_mask_rule("#ff0000", None, "#00ff00"), GRID, WHOLE)
    assert (codes == UNKNOWN_SPEED).sum() == (drawn() == 1).sum()
    assert (codes == NODATA).sum() == (drawn() == 9).sum()
    grey = np.where(drawn() == 1, 255, 0).astype(np.uint8)
    layers = np.stack([grey, grey, grey, np.where(drawn() == 9, 0, 255).astype(np.uint8)])
    label = write(tmp_path / "b.tif", layers, GRID.transform, UTM, photometric="rgb", alpha="yes")
    both, _ = read_mask(label, make_mask_rule("255", None, None), GRID, WHOLE)
    np.testing.assert_array_equal(both, codes)


@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_a_mask_that_cannot_be_read_is_refused_by_its_name(tmp_path, damage):
    label = write(tmp_path / "a.tif", drawn(), GRID.transform, UTM)
    path = tmp_path / "a.tif"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:3000])
    else:
        path.unlink()
    with pytest.raises(LabelError, match=r"a\.tif.*It is a label"):
        read_mask(label, RULE, GRID, WHOLE)


# --- coarser levels -----------------------------------------------------------------------------


def plain_majority(block):
    """What the docstring says, in as many words."""
    known = block[block != NODATA]
    if not len(known):
        return NODATA
    roads = known[known != 0]
    if 2 * len(roads) < len(known):
        return 0
    values, times = np.unique(roads, return_counts=True)
    return int(values[times == times.max()].max())


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 3))
def test_a_coarser_pixel_is_what_most_known_ones_say(seed, factor, kinds):
    choices = np.array([0, UNKNOWN_SPEED, NODATA, 25, 45], np.uint8)[: 2 + kinds]
    codes = np.random.default_rng(seed).choice(choices, (12, 24))
    out = np.zeros((20, 30), np.uint8)
    ys, xs = (np.arange(0, side + 1, factor, dtype=float) for side in codes.shape)
    majority(codes, ys, xs, out, roads=True)
    for i in range(12 // factor):
        for j in range(24 // factor):
            block = codes[i * factor : (i + 1) * factor, j * factor : (j + 1) * factor]
            assert out[i, j] == plain_majority(block)
    assert not out[12 // factor :].any()


def test_finer_pixels_have_the_code_of_the_one_they_lie_in():
    codes = np.array([[0, 254], [255, 30]], np.uint8)
    out = np.zeros((5, 5), np.uint8)
    edges = np.linspace(0, 2, 6)
    majority(codes, edges, edges, out, roads=True)
    near = [0, 0, 1, 1, 1]  # the middle of the third lies on the border
    np.testing.assert_array_equal(out, codes[np.ix_(near, near)])


@pytest.mark.parametrize("place", ["internal", "beside", "per band"])
def test_pixels_that_a_mask_band_hides_have_no_label(tmp_path, place):
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=place == "internal"):
        label = write(tmp_path / "a.tif", drawn(), GRID.transform, UTM)
        with rasterio.open(label, "r+") as file:
            file.write_mask(drawn() != 9)
    assert (tmp_path / "a.tif.msk").exists() == (place != "internal")
    if place == "per band":
        with rasterio.open(tmp_path / "a.tif.msk", "r+") as file:
            file.update_tags(INTERNAL_MASK_FLAGS_1=0)
    known = np.where(drawn() == 9, NODATA, expected(drawn()))
    finer = GRID.resized(160, 200)
    for grid, scale in ((GRID, 1), (finer, 2)):
        codes, _ = read_mask(label, RULE, grid, SceneWindow(0, 0, grid.height, grid.width))
        np.testing.assert_array_equal(codes, known.repeat(scale, axis=0).repeat(scale, axis=1))


@pytest.mark.parametrize("tag", [9, None])
def test_nodata_may_be_background_but_not_what_a_mask_does_not_reach(tmp_path, tag):
    label = write(tmp_path / "a.tif", drawn(), GRID.transform, UTM, nodata=tag)
    if tag is None:
        with rasterio.open(label, "r+") as file:
            file.write_mask(drawn() != 9)
    roads = make_mask_rule("3", None, "none")
    wider = GRID.resized(160, 200).window(0, 0, 160, 240)
    codes, _ = read_mask(label, roads, wider, SceneWindow(0, 0, 160, 240))
    known = np.where(drawn() == 3, UNKNOWN_SPEED, 0).repeat(2, axis=0).repeat(2, axis=1)
    np.testing.assert_array_equal(codes[:, :200], known)
    assert (codes[:, 200:] == NODATA).all()
    said = unlabelled_pixels(label)
    assert f"{(drawn() == 9).sum()} of 8,000 pixels of a.tif" in said
    assert ("nodata tag 9" if tag else "alpha or mask band") in said


def test_transparent_entries_of_a_palette_have_no_label_unless_a_class_has_them(tmp_path):
    mask = np.arange(8000, dtype=np.uint8).reshape(80, 100) % 5
    picture = Image.fromarray(mask, "P")
    picture.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9])
    path = tmp_path / "a.png"
    picture.save(path, transparency=bytes([255, 0, 255, 0, 0]))  # 1, 3 and 4
    rule = make_class_rule("a=0,b=#FF0000,c=2")
    codes, _ = read_mask(str(path), rule, GRID, WHOLE)
    np.testing.assert_array_equal(codes, np.array([0, 1, 2, NODATA, NODATA], np.uint8)[mask])
    roads, _ = read_mask(str(path), make_mask_rule("2,3", None, None), GRID, WHOLE)
    np.testing.assert_array_equal(roads, np.array([0, 255, 254, 254, 255], np.uint8)[mask])


@pytest.mark.parametrize("turns", [(0.5, 0.5), (0.5, -0.5), (-0.5, 0.5), (-0.5, -0.5)])
@pytest.mark.parametrize("of_mask", ["EPSG:4326", "EPSG:3857"])
@pytest.mark.parametrize("of_image", ["EPSG:4326", "EPSG:3857", "EPSG:32701"])
def test_a_mask_across_180_degrees_is_read_whole(tmp_path, of_image, of_mask, turns):
    """Whichever way the mask and the image count the other side."""

    def around(crs, turn, side, size):
        lon = 0 if turn_of(crs) else -180
        x, y = transformer(LONLAT, crs).transform([lon, lon + 1e-5, lon], [-17, -17, -17 + 1e-5])
        across, up, middle = size * (x[1] - x[0]), size * (y[2] - y[0]), x[0] + turn * turn_of(crs)
        left, top = middle - side / 2 * across, y[0] + side / 2 * up
        return Grid(side, side, Affine(across, 0, left, 0, -up, top), crs)

    own = around(of_mask, turns[0], 200, 0.5)
    grid = around(of_image, turns[1], 80, 1)
    mask = np.zeros((200, 200), np.uint8)
    mask[91:109] = 1
    label = write(tmp_path / "a.tif", mask, own.transform, own.crs)
    codes, _ = read_mask(label, RULE, grid, SceneWindow(0, 0, 80, 80))
    np.testing.assert_array_equal(codes[38:42], UNKNOWN_SPEED)
    assert (np.delete(codes, slice(34, 46), axis=0) == 0).all()
