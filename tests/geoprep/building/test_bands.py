"""Images whose bands have other orders or names than those of the first."""

import numpy as np
import pytest
import rasterio
from affine import Affine
from helpers.factory import Place, build_of, plan_of, texture, write_image
from rasterio.enums import ColorInterp

from geoprep.building.options import BuildOptions
from geoprep.errors import SourceError, UsageError
from geoprep.imagery import description
from geoprep.sources.scene import Scene

VALUES = texture(70, 90)
RGB = ("red", "green", "blue")


def scene(folder, number, order=(0, 1, 2), names=RGB, colours=None):
    """Return an image of bands in an order; ``names`` are those of its bands."""
    place = Place("EPSG:32637", Affine(0.5, 0, 400_000 + 100 * number, 0, -0.5, 6_200_000))
    path = write_image(folder / f"{number}.tif", VALUES[..., list(order)], place)
    with rasterio.open(path, "r+") as file:
        file.descriptions = names
        file.colorinterp = [ColorInterp[name] for name in colours or ["undefined"] * 3]
    return Scene(str(number), str(path), None)


@pytest.mark.parametrize(
    ("names", "colours"),
    [
        (("blue", "green", "red"), None),
        (("Blue", "Green", "RED"), ["red", "green", "blue"]),
        (("Band 2 (blue)", "Band 3 (green)", "Band 4 (red)"), None),
        ((None, None, None), ["blue", "green", "red"]),
        (("B02", "B03", "B04"), ["blue", "green", "red"]),
    ],
)
@pytest.mark.parametrize("options", [{}, {"tile": 64, "shard_tiles": 1, "bands": (1, 2, 3)}])
def test_bands_of_another_order_are_read_by_name(tmp_path, names, colours, options):
    scenes = [scene(tmp_path, 0), scene(tmp_path, 1), scene(tmp_path, 2, (2, 1, 0), names, colours)]
    plan = plan_of(scenes, rescale="none", **options)
    assert plan.meta.bands == RGB
    assert "another order" in plan.notes[0]
    assert "2.tif" in plan.notes[0]
    store = build_of(tmp_path / "s.zarr", scenes, rescale="none", levels=1, **options)
    tiles = store.image()[...]
    first, last = (tiles[store.tiles.scene == number] for number in (0, 2))
    assert np.array_equal(first, last)


@pytest.mark.parametrize("names", [("nir", "red", "green"), ("B02", "B03", "B04")])
def test_an_image_that_lacks_a_band_fails_by_name(tmp_path, names):
    """Unless its bands are chosen by their numbers, which is said."""
    scenes = [scene(tmp_path, 0, names=names), scene(tmp_path, 1), scene(tmp_path, 2)]
    failures = [one.failure for one in plan_of(scenes).scenes]
    assert failures[1:] == ["", ""]
    assert f"0.tif has bands {', '.join(names)}, and most images red, green, blue" in failures[0]
    plan = plan_of(scenes, bands=(1, 2, 3))
    assert not any(one.failure for one in plan.scenes)
    assert "0.tif: bands without names, or with others, read in their order" in plan.notes[0]


def test_bands_are_chosen_by_name_or_number(tmp_path):
    scenes = [scene(tmp_path, 0), scene(tmp_path, 1, (2, 1, 0), ("B2", "Green", "b4"))]
    plan = plan_of(scenes, bands="GREEN,3")
    assert [one.pixels.bands for one in plan.scenes] == [(2, 3), (2, 3)]
    (failed,) = plan_of([*scenes, scene(tmp_path, 2)], bands=("B2",)).scenes[2:]
    assert "2.tif has 3 band(s), red, green, blue, and no band B2" in failed.failure
    with pytest.raises(UsageError, match="`bands` 1,: expected names, or numbers from 1"):
        BuildOptions(bands=(1, ""))


def test_an_image_without_names_is_read_in_order(tmp_path):
    scenes = [scene(tmp_path, 0, names=(None, None, None)), scene(tmp_path, 1)]
    plan = plan_of(scenes, tile=64)
    assert [one.pixels.bands for one in plan.scenes] == [(1, 2, 3), (1, 2, 3)]
    assert plan.meta.bands == RGB
    assert "0.tif: bands without names" in plan.notes[0]
    assert not plan_of([scene(tmp_path, 0), scene(tmp_path, 1)], tile=64).notes


def test_a_fourth_band_called_alpha_is_mentioned_and_can_be_read(tmp_path):
    infrared = VALUES[..., 0].copy()
    infrared[20:40, 20:60] = 0
    path = write_image(tmp_path / "a.tif", VALUES, alpha=infrared)
    scenes = [Scene("a", str(path), None)]
    assert "band 4 is called alpha and marks nodata" in plan_of(scenes).notes[0]
    assert not any("alpha" in note for note in plan_of(scenes, bands=(1, 2, 3, 4)).notes)
    options = {"rescale": "none", "levels": 1, "tile": 64, "shard_tiles": 1}
    store = build_of(tmp_path / "s.zarr", scenes, bands=(1, 2, 3, 4), **options)
    tile = store.image()[0]
    assert np.array_equal(tile[..., 3], np.maximum(infrared[:64, :64], 1))
    assert np.array_equal(tile[..., :3], VALUES[:64, :64])


def test_an_odd_header_fails_one_scene(tmp_path, monkeypatch):
    known = description._bands

    def bands(dataset):
        if dataset.name.endswith("0.tif"):
            raise ValueError("26 is not a valid ColorInterp")
        return known(dataset)

    monkeypatch.setattr(description, "_bands", bands)
    first, second = plan_of([scene(tmp_path, 0), scene(tmp_path, 1)]).scenes
    assert "0.tif: its header cannot be read (ValueError: 26 is not" in first.failure
    assert not second.failure


def test_names_that_images_do_not_share_are_colours_or_numbers(tmp_path):
    """Tools that cut mosaics write the name of the file into those of its bands."""
    own = [tuple(f"mosaic_{i}.tif: {band}" for band in range(3)) for i in range(3)]
    plain = plan_of([scene(tmp_path, i, names=own[i]) for i in range(3)], tile=64)
    assert plain.meta.bands == ("band 1", "band 2", "band 3")
    assert not any(one.failure for one in plain.scenes)
    assert "most images do not share names of bands such as mosaic_0.tif: 0" in plain.notes[-1]
    assert "`band_names` names them" in plain.notes[-1]
    stated = [scene(tmp_path, i, names=own[i], colours=RGB) for i in range(2)]
    stated.append(scene(tmp_path, 2, (2, 1, 0), own[2], RGB[::-1]))
    plan = plan_of(stated)
    assert plan.meta.bands == RGB
    assert [one.pixels.bands for one in plan.scenes] == [(1, 2, 3), (1, 2, 3), (3, 2, 1)]


def test_bands_get_the_names_that_are_given(tmp_path):
    scenes = [scene(tmp_path, i, names=(f"{i}a", f"{i}b", f"{i}c")) for i in range(2)]
    plan = plan_of(scenes, band_names="nir, red,green", tile=64)
    assert plan.meta.bands == ("nir", "red", "green")
    assert not plan.notes
    assert plan_of(scenes, bands=(3, 1), band_names=("b", "a")).meta.bands == ("b", "a")
    with pytest.raises(SourceError, match=r"names 2 bands, and 3 of .*0\.tif are stored"):
        plan_of(scenes, band_names="nir,red")
    with pytest.raises(UsageError, match="a name of its own"):
        BuildOptions(band_names="a,a")
