"""Test that neighbouring or overlapping rasters give one connected network."""

import numpy as np
import pytest
import shapely
from affine import Affine
from helpers.roads import degree_counts, drawn, network, write_raster

from geoprep.errors import SourceError, UsageError
from geoprep.roads.graph import edge_components
from geoprep.roads.tracing import rasters_in, vectorize
from geoprep.roads.tracing.merging import TileNetwork, merged

LINES = [
    [(-10, -100), (410, -130)],
    [(-10, -300), (410, -290)],
    [(120, 10), (100, -410)],
    [(300, 10), (310, -410)],
    [(205, -115), (195, -295)],
]


def pieces(folder, windows, *, crs="EPSG:32637", lines=LINES, size=400):
    """Cut a drawn city into rasters of 1 m, (top, left, height, width) each."""
    mask = drawn(lines, (size, size), width=5, value=30)
    for number, (top, left, height, width) in enumerate(windows):
        write_raster(
            folder / f"{number}.tif",
            mask[top : top + height, left : left + width],
            crs=crs,
            transform=Affine(1, 0, 400_000 + left, 0, -1, 6_000_000 - top),
        )
    return rasters_in(folder)


def joined(paths, windows):
    """Return the joined networks of rasters that are traced separately."""
    tiles = []
    for path, (top, left, height, width) in zip(paths, windows, strict=True):
        west, north = 400_000 + left, 6_000_000 - top
        outline = shapely.box(west, north - height, west + width, north)
        tiles.append(TileNetwork(vectorize([path], kind="speed"), outline))
    return merged(tiles, motorway_mph=60)


@pytest.mark.parametrize(
    "windows",
    [
        [(0, 0, 200, 200), (0, 200, 200, 200), (200, 0, 200, 200), (200, 200, 200, 200)],
        [(0, 0, 250, 250), (0, 150, 250, 250), (150, 0, 250, 250), (150, 150, 250, 250)],
        [(0, 0, 400, 203), (0, 203, 400, 197)],
    ],
    ids=["abutting", "overlapping", "along a road"],
)
def test_tiles_traced_separately_are_joined_like_the_whole(tmp_path, windows):
    (tmp_path / "whole").mkdir()
    whole = vectorize(pieces(tmp_path / "whole", [(0, 0, 400, 400)]), kind="speed")
    (tmp_path / "parts").mkdir()
    parts = joined(pieces(tmp_path / "parts", windows), windows)
    assert len(np.unique(edge_components(parts))) == 1
    assert parts.crs == whole.crs == "EPSG:32637"
    assert parts.length_m.sum() == pytest.approx(whole.length_m.sum(), rel=0.03)
    far = shapely.hausdorff_distance(
        shapely.union_all(parts.lines), shapely.union_all(whole.lines), densify=0.01
    )
    assert far < 8
    assert np.nanmax(np.abs(parts.speed_mph - 30)) < 1e-6
    assert set(degree_counts(parts)) == set(degree_counts(whole))
    assert abs(len(parts.nodes) - len(whole.nodes)) <= 2


def test_a_bridge_at_a_border_is_recognised_when_networks_are_joined():
    """The motorway runs 3 m inside one tile; the road that crosses it ends at the border."""
    one = network(
        [(0, 3), (100, 3)], [(100, 3), (200, 3)], [(100, 90), (100, 3)], speeds=[65, 65, 30]
    )
    other = network([(100, -90), (100, 0)], speeds=[30])
    tiles = [
        TileNetwork(one, shapely.box(0, 0, 200, 90)),
        TileNetwork(other, shapely.box(0, -90, 200, 0)),
    ]
    made = merged(tiles, motorway_mph=60)
    assert degree_counts(made) == {1: 4}
    assert np.sort(made.speed_mph).round(1).tolist() == [30, 65]
    assert degree_counts(merged(tiles, motorway_mph=70)) == {1: 4, 4: 1}


def test_rasters_of_two_utm_zones_are_joined(tmp_path):
    """Zones 37 and 38 meet at 42 degrees east."""
    step = 1e-5
    mask = drawn([[(-10, -50), (310, -50)]], (100, 200), width=6)
    for number, (crs, left) in enumerate([("EPSG:32637", 42 - 200 * step), ("EPSG:32638", 42)]):
        lonlat = write_raster(
            tmp_path / "lonlat.tif",
            mask,
            crs="EPSG:4326",
            transform=Affine(step, 0, left, 0, -step, 55),
        )
        warped(lonlat, tmp_path / f"{number}.tif", crs)
    (tmp_path / "lonlat.tif").unlink()
    made = vectorize(rasters_in(tmp_path), kind="mask")
    assert made.crs in ("EPSG:32637", "EPSG:32638")
    assert len(np.unique(edge_components(made))) == 1
    assert made.length_m.sum() == pytest.approx(
        400 * step * 111_320 * np.cos(np.radians(55)), rel=0.02
    )


def warped(source, target, crs):
    import rasterio
    from rasterio.warp import calculate_default_transform, reproject

    with rasterio.open(source) as file:
        transform, width, height = calculate_default_transform(
            file.crs, crs, file.width, file.height, *file.bounds
        )
        out = np.zeros((height, width), np.uint8)
        reproject(rasterio.band(file, 1), out, dst_transform=transform, dst_crs=crs)
    write_raster(target, out, crs=crs, transform=transform)


def test_rasters_far_apart_are_not_joined(tmp_path):
    lines = [[(20, -50), (380, -50)]]
    made = vectorize(pieces(tmp_path, [(0, 0, 100, 150), (0, 250, 100, 150)], lines=lines))
    assert len(np.unique(edge_components(made))) == 2


def test_an_empty_raster_among_others(tmp_path):
    lines = [[(20, -50), (180, -50)]]
    windows = [(200, 0, 100, 200), (0, 0, 100, 200), (0, 200, 100, 200)]
    made = vectorize(pieces(tmp_path, windows, lines=lines), kind="mask")
    assert degree_counts(made) == {1: 2}
    (tmp_path / "1.tif").unlink()
    assert not len(vectorize(rasters_in(tmp_path), kind="mask").lines)


def test_rasters_without_georeference_are_vectorized_alone(tmp_path):
    for name in "ab":
        write_raster(tmp_path / f"{name}.tif", np.zeros((9, 9), np.uint8), crs=None)
    with pytest.raises(UsageError, match=r"a.tif: not georeferenced.*alone"):
        vectorize(rasters_in(tmp_path), pixel_size_m=1)
    assert vectorize([tmp_path / "a.tif"], pixel_size_m=1).crs is None


def test_a_folder_without_rasters_is_named(tmp_path):
    with pytest.raises(SourceError, match="the folder has no raster"):
        rasters_in(tmp_path)
    with pytest.raises(SourceError, match="no such file"):
        rasters_in(tmp_path / "x.tif")


def test_previews_of_predictions_are_omitted(tmp_path):
    for name in ("b.tif", "a.tif", "a.png", "a.qml"):
        (tmp_path / name).touch()
    assert [path.name for path in rasters_in(tmp_path)] == ["a.tif", "b.tif"]
    for name in ("a.tif", "b.tif"):
        (tmp_path / name).unlink()
    assert [path.name for path in rasters_in(tmp_path)] == ["a.png"]
