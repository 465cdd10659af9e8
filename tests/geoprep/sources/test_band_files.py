"""Bands as files of one scene: as Sentinel-2 and Landsat come."""

from pathlib import Path

import numpy as np
import pytest
from affine import Affine
from helpers.rasters import write_raster

import geoprep as gp
from geoprep.errors import SourceError, UsageError
from geoprep.sources.own_images import images_and_labels
from geoprep.storage.inputs import open_image
from geoprep.store.scenes import read_image

SIDE = 64
TILES = "T36KVU_20210513T073609", "T36KWU_20210513T073609"
SENTINEL = "*.SAFE/**/*_{B02_10m,B04_10m,B11_20m}.jp2"


def write_band(path, size, seed, left=400_000.0, **more):
    """Write a band of ``size`` metres per pixel on the ground of SIDE pixels of 10 m."""
    side = int(SIDE * 10 / size)
    values = np.random.default_rng(seed).integers(1001, 6000, (1, side, side)).astype(np.uint16)
    place = Affine(size, 0, left, 0, -size, 8_000_000)
    jp2 = {"driver": "JP2OpenJPEG", "QUALITY": "100", "REVERSIBLE": "YES"}
    driver = jp2 if path.suffix == ".jp2" else {}
    write_raster(path, values, crs="EPSG:32736", transform=place, **driver, **more)
    return values[0]


@pytest.fixture
def safe(tmp_path, monkeypatch):
    """Return the bands by scene and name of two folders as Sentinel-2's L2A products have them."""
    monkeypatch.chdir(tmp_path)
    bands = {}
    for i, tile in enumerate(TILES):
        folder = Path(f"S2A_MSIL2A_20210513T073611_N0500_R092_{tile[:6]}.SAFE/GRANULE/L2A/IMG_DATA")
        for j, (name, size) in enumerate((("B02", 10), ("B04", 10), ("B11", 20), ("B12", 20))):
            path = folder / f"R{size}m" / f"{tile}_{name}_{size}m.jp2"
            bands[tile, name] = write_band(path, size, 9 * i + j, 400_000.0 + 5_000 * i)
    return bands


def test_a_safe_folder_has_a_scene_per_tile_with_bands_of_two_sizes(safe):
    found = images_and_labels([SENTINEL])
    assert [scene.id for scene in found.scenes] == [f"{tile}" for tile in TILES]
    assert not found.notes
    for scene in found.scenes:
        with open_image(scene.image) as image:
            assert image.res == (10, 10)
            values = image.read()
        wide = safe[scene.id, "B11"].repeat(2, 0).repeat(2, 1)
        expected = safe[scene.id, "B02"], safe[scene.id, "B04"], wide
        assert np.array_equal(values, np.stack(expected))
    built = gp.build_zarr(
        images=SENTINEL, rescale="1000,6000", nodata=0, val=0.0, levels=1, out="a.zarr"
    )
    assert built.meta.bands == ("B02_10m", "B04_10m", "B11_20m")
    assert (built.scenes.status == "unlabelled").all()
    pixels = read_image(built.reader, 0)
    assert np.array_equal(pixels[::2, ::2, 2], pixels[1::2, 1::2, 2])


def test_a_band_that_is_missing_fails_its_scene_by_name(safe):
    next(Path().rglob(f"{TILES[1]}_B04_10m.jp2")).unlink()
    said = gp.build_zarr(images=SENTINEL, out="a.zarr", dry_run=True)
    ((scene, reason),) = said.failures
    assert scene == TILES[1]
    assert f"{TILES[1]}_B04_10m.jp2: no such file" in reason


def test_landsat_bands_and_labels_of_the_scene_belong_together(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "LC08_L2SP_170071_20210513_20210524_02_T1"
    for i, band in enumerate((4, 3, 2)):
        write_band(Path(name, f"{name}_SR_B{band}.TIF"), 30, i, nodata=0)
    write_band(Path(name, f"{name}_QA_PIXEL.TIF"), 30, 9)
    Path("labels").mkdir()
    write_band(Path("labels", f"{name}_SR.tif"), 30, 7)
    found = images_and_labels(["LC0*/*_SR_{B4,B3,B2}.TIF"], "labels", masks=True)
    (scene,) = found.scenes
    assert scene.id == f"{name}_SR"
    assert Path(scene.label).name == f"{name}_SR.tif"
    assert [Path(file).stem[-2:] for file in scene.images] == ["B4", "B3", "B2"]
    assert found.stated[scene.id].names == (("B4", ""), ("B3", ""), ("B2", ""))


def test_files_that_are_called_by_their_band_belong_to_their_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for i, folder in enumerate(("north", "south")):
        for j, band in enumerate(("red", "nir")):
            write_band(Path(folder, f"{band}.tif"), 10, 5 * i + j)
    found = images_and_labels(["*/{red,nir}.tif"])
    assert [scene.id for scene in found.scenes] == ["north", "south"]
    assert [Path(file).name for file in found.scenes[0].images] == ["red.tif", "nir.tif"]
    assert found.stated["north"].names == (("red", "red"), ("nir", "nir"))
    with pytest.raises(UsageError, match="different names of bands in the name of the files"):
        images_and_labels(["{north,south}/red.tif"])


def test_images_that_are_bands_by_their_names_are_noted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for band in ("B02", "B03"):
        write_band(Path(f"a_{band}_10m.tif"), 10, 1)
    (note,) = images_and_labels(["*.tif"]).notes
    assert "2 images look like the bands of 1 scene: their names differ by B02,B03 only" in note
    assert "`images` '*_{B02,B03}_10m.tif' makes scenes of them" in note
    assert not images_and_labels(["*_{B02,B03}_10m.tif"]).notes
    write_band(Path("a_B03_10m.tif"), 20, 1)
    assert not images_and_labels(["*.tif"]).notes


def test_bands_of_other_ground_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_band(Path("a_B02.tif"), 10, 1)
    write_band(Path("a_B03.tif"), 10, 1, left=400_100.0)
    with pytest.raises(SourceError, match="bands need the same extent and CRS"):
        gp.build_zarr(images="*_{B02,B03}.tif", out="a.zarr", dry_run=True)
