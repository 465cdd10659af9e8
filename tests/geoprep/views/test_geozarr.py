"""Scenes as GeoZarr: what other programs find in them."""

import json
import warnings

import numpy as np
import pytest
import rasterio
import xarray as xr
import zarr
from helpers.factory import Place, build_of, texture, write_scene

import geoprep
from geoprep.errors import OutputError, UsageError
from geoprep.store.scenes import is_aligned

SCENES = ["city_border", "city_unlabelled", "utm_north", "utm_south", "utm_small"]
GDAL = tuple(map(int, rasterio.__gdal_version__.split(".")[:2]))


@pytest.fixture(scope="module")
def exported(small_store, tmp_path_factory):
    out = tmp_path_factory.mktemp("geozarr") / "scenes.zarr"
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert geoprep.export_geozarr(small_store, out) == out
    return out


def documents(folder):
    """Return path -> metadata of every node that follows conventions."""
    found = {p: json.loads(p.read_text()) for p in sorted(folder.rglob("zarr.json"))}
    return {p: one for p, one in found.items() if "zarr_conventions" in one["attributes"]}


def test_every_scene_with_pixels_is_a_group_of_its_aligned_levels(opened, exported):
    reader = opened.reader
    root = zarr.open_group(exported, mode="r")
    usable = [i for i, one in enumerate(reader.scenes.status) if one in ("ok", "unlabelled")]
    assert sorted(root.group_keys()) == sorted(str(reader.scenes.id[i]) for i in usable)
    for index in usable:
        group = root[str(reader.scenes.id[index])]
        levels = {str(one) for one in reader.meta.levels if is_aligned(reader, index, one)}
        assert set(group.group_keys()) == levels
        assert group.attrs["multiscales"]["layout"][0]["asset"] == "64"
    assert set(root["utm_north"].group_keys()) == {"64"}
    assert not list(exported.parent.glob(".*"))


@pytest.mark.parametrize("scene", SCENES)
def test_xarray_reads_the_pixels_of_a_level(opened, exported, scene):
    for level in zarr.open_group(exported, mode="r")[scene].group_keys():
        read = xr.open_zarr(exported, group=f"{scene}/{level}", mask_and_scale=False)
        expected = opened.to_xarray(int(level), scene=scene)
        assert set(read.coords) == set(expected.coords)
        assert list(read.data_vars) == list(expected.data_vars)
        for name in read.variables:
            np.testing.assert_array_equal(read[name].values, expected[name].values)
            assert read[name].dims == expected[name].dims
            assert expected[name].attrs.items() <= read[name].attrs.items()
        assert read.attrs == expected.attrs


def test_masked_values_are_not_a_number(exported):
    read = xr.open_zarr(exported, group="city_border/64")
    assert np.isnan(read.image.values[:, :, :37]).all()
    assert np.isnan(read.speed.values).any()


def test_levels_follow_from_the_finest(exported):
    attributes = zarr.open_group(exported, mode="r")["city_2"].attrs.asdict()
    fine, coarse = attributes["multiscales"]["layout"]
    a, b, c, d, e, f = fine["spatial:transform"]
    assert fine == {
        "asset": "64",
        "spatial:transform": [a, b, c, d, e, f],
        "spatial:shape": [150, 130],
    }
    assert coarse == {
        "asset": "32",
        "spatial:transform": [2 * a, b, c, d, 2 * e, f],
        "spatial:shape": [75, 65],
        "derived_from": "64",
        "transform": {"scale": [2.0, 2.0]},
    }
    # Positions are those of the layout only: a newer draft refuses a second one.
    assert not {"spatial:transform", "spatial:shape"} & set(attributes)


@pytest.mark.parametrize("scene", SCENES)
def test_attributes_are_those_of_the_conventions(sources, exported, scene):
    with rasterio.open(sources / f"{scene}.tif") as source:
        left, right = sorted(source.bounds[::2])
        bottom, top = sorted(source.bounds[1::2])
        code = source.crs.to_string()
    for path, document in documents(exported / scene).items():
        attributes = document["attributes"]
        names = ["spatial", "proj"]
        if document["node_type"] == "group":
            names.insert(0, "multiscales")
        else:
            assert {"y", "x"} <= set(document["dimension_names"])
            height, width = document["shape"][-2:]
            assert attributes["spatial:shape"] == [height, width]
        assert [one["name"] for one in attributes["zarr_conventions"]] == names
        assert attributes["proj:code"] == code
        if path.parent.name == scene or path.parent.parent.name == "64":
            assert attributes["spatial:bbox"] == pytest.approx([left, bottom, right, top])


def test_the_conventions_own_library_finds_nothing_wrong(exported):
    checker = pytest.importorskip("zarr_cm", reason="zarr-cm is not installed")
    found = documents(exported)
    assert len(found) > len(SCENES)
    for document in found.values():
        for one in document["attributes"]["zarr_conventions"]:
            getattr(checker, one["name"]).validate_node_metadata(document)


@pytest.mark.skipif(GDAL < (3, 12), reason="GDAL is older than 3.12")
def test_gdal_finds_crs_transform_and_nodata(sources, exported):
    with (
        rasterio.open(f'ZARR:"{exported}":/city_1/64/image') as read,
        rasterio.open(sources / "city_1.tif") as source,
    ):
        assert (read.crs, read.nodata) == (source.crs, 0)
        np.testing.assert_allclose(read.transform, source.transform, rtol=1e-9)
        np.testing.assert_array_equal(read.read(), source.read())


def test_crs_without_a_code_is_wkt_and_rotation_is_kept(tmp_path):
    grid = rasterio.Affine(0.4, 0.3, 0, 0.3, -0.4, 0)
    crs = "+proj=tmerc +lon_0=38.5 +ellps=GRS80"
    scene = write_scene(tmp_path, "a", texture(64, 96), Place(crs, grid))
    store = build_of(tmp_path / "x.zarr", [scene], tile=64)
    geoprep.export_geozarr(store.location, tmp_path / "out", scenes="a")
    read = xr.open_zarr(tmp_path / "out", group="a/64")
    assert read.image.attrs["proj:wkt2"] == read.spatial_ref.attrs["crs_wkt"]
    assert "proj:code" not in read.image.attrs
    assert read.image.attrs["spatial:transform"] == list(grid)[:6]
    assert not {"x", "y"} & set(read.variables)


def test_rows_of_a_large_scene_are_read_one_after_another(opened, tmp_path, monkeypatch):
    monkeypatch.setattr("geoprep.views.geozarr.BLOCK", 48)
    geoprep.export_geozarr(opened, tmp_path / "out", scenes=["city_1"])
    image = zarr.open_array(tmp_path / "out" / "city_1" / "64" / "image", mode="r")
    assert image.chunks[1] < image.shape[1]
    np.testing.assert_array_equal(image[:], opened.to_xarray(scene="city_1").image.values)


def test_an_existing_folder_is_kept(opened, tmp_path):
    with pytest.raises(UsageError, match=r"exists\. Remove it"):
        geoprep.export_geozarr(opened, tmp_path)
    with pytest.raises((UsageError, OutputError), match="create it first"):
        geoprep.export_geozarr(opened, tmp_path / "a" / "b")
