"""STAC items become scenes: their ids, one asset each, its address, and no file of this machine."""

import json

import geopandas
import numpy as np
import pytest
import rasterio
import shapely.geometry
from helpers.buckets import client_of, s3_endpoint, use_endpoint
from helpers.factory import PLACES, build_of, plan_of, texture, write_image
from helpers.items import API, collection_of, sentinel_item, write_json
from helpers.web import served

from geoprep.errors import SourceError, UsageError
from geoprep.sources.own_images import images_and_labels
from geoprep.sources.stac_items import is_items

COGS = "https://sentinel-cogs.s3.us-west-2.amazonaws.com/sentinel-s2-l2a-cogs/37/U/DB"
A, B = "S2B_37UDB_20240501_0_L2A", "S2A_37UDB_20240503_0_L2A"
TIME = "2024-05-01T08:26:11.123000Z"


def addresses(found):
    return {scene.id: scene.image for scene in found.scenes}


def item(**changes):
    return sentinel_item(A, f"{COGS}/{A}") | changes


def found_in(path, asset="visual"):
    return images_and_labels([str(path)], asset=asset)


def test_a_search_result_gives_scenes_with_ids_times_and_labels(tmp_path):
    items = [sentinel_item(name, f"{COGS}/{name}") for name in (A, B)]
    path = write_json(tmp_path / "search.json", collection_of(*items))
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / f"{B}_roads.geojson").touch()
    found = images_and_labels([str(path)], str(tmp_path / "labels"), asset="visual")
    assert addresses(found) == {name: f"{COGS}/{name}/TCI.tif" for name in (A, B)}
    assert {scene.id: bool(scene.label) for scene in found.scenes} == {A: False, B: True}
    assert found.datetimes == {A: TIME, B: TIME}
    assert found.notes == ()
    assert addresses(found_in(path, "red"))[A] == f"{COGS}/{A}/B04.tif"


def test_a_folder_of_items_beside_their_images(tmp_path):
    for name in (A, B):
        one = sentinel_item(name, f"./{name}") | {"links": []}
        write_json(tmp_path / "items" / f"{name}.json", one)
    expected = {name: str(tmp_path / "items" / name / "TCI.tif") for name in (A, B)}
    assert addresses(found_in(tmp_path / "items")) == expected
    assert addresses(found_in(tmp_path / "items" / "S2A*.json")) == {B: expected[B]}
    (tmp_path / "items" / "plain.tif").touch()  # a folder of images is one of images
    assert addresses(images_and_labels([str(tmp_path / "items")])).keys() == {"plain"}
    both = images_and_labels(
        [str(tmp_path / "items" / p) for p in ("*.tif", "*.json")], asset="red"
    )
    assert addresses(both).keys() == {A, B, "plain"}


def test_relative_addresses_start_at_the_self_link_or_else_at_the_file(tmp_path):
    own = f"{COGS}/{A}/{A}.json"
    write_json(tmp_path / "a.json", sentinel_item(A, "..", own=own))
    assert addresses(found_in(tmp_path / "a.json")) == {A: f"{COGS}/TCI.tif"}
    write_json(tmp_path / "a.json", sentinel_item(A, "x", own="s3://b/deep/a.json"))
    assert addresses(found_in(tmp_path / "a.json")) == {A: "s3://b/deep/x/TCI.tif"}
    write_json(tmp_path / "a.json", sentinel_item(A, f"file://{tmp_path}/my%20files", own="a.json"))
    assert addresses(found_in(tmp_path / "a.json")) == {A: f"{tmp_path}/my files/TCI.tif"}

    local = sentinel_item(A, f"file://localhost{tmp_path}/my%20files", own="a.json")
    write_json(tmp_path / "a.json", local)
    assert addresses(found_in(tmp_path / "a.json")) == {A: f"{tmp_path}/my files/TCI.tif"}


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_an_id_that_cannot_name_a_file_is_refused(tmp_path, name):
    write_json(tmp_path / "a.json", item(id=name))
    with pytest.raises(SourceError, match=f"its id '{name}' cannot name a file"):
        found_in(tmp_path / "a.json")


@pytest.fixture
def web(tmp_path):
    (tmp_path / "www").mkdir()
    with served(tmp_path / "www") as (address, _):
        yield address, tmp_path / "www"


def test_items_are_read_from_a_web_server(web):
    address, folder = web
    write_json(folder / "v1" / "search", collection_of(sentinel_item(A, "x", own="./a.json")))
    for path in ("v1/search", "v1/search?collections=sentinel-2-l2a&limit=1"):
        assert addresses(found_in(f"{address}/{path}")) == {A: f"{address}/v1/x/TCI.tif"}
    with pytest.raises(SourceError, match=r"gone\.json: cannot be downloaded"):
        found_in(f"{address}/gone.json")


def test_items_are_read_from_a_bucket(monkeypatch):
    with s3_endpoint("items") as endpoint:
        use_endpoint(monkeypatch, endpoint)
        for name in (A, B):
            body = json.dumps(sentinel_item(name, name) | {"links": []}).encode()
            client_of(endpoint).put_object(Bucket="items", Key=f"d/{name}.json", Body=body)
        expected = {name: f"s3://items/d/{name}/TCI.tif" for name in (A, B)}
        for pattern in ("s3://items/d", "s3://items/d/*.json"):
            assert addresses(found_in(pattern)) == expected
        assert addresses(found_in(f"s3://items/d/{A}.json")) == {A: expected[A]}


@pytest.mark.parametrize(
    ("href", "address"),
    [
        ("../../../../../etc/passwd", "{server}/etc/passwd"),
        ("/etc/passwd", "{server}/etc/passwd"),
        ("GTIFF_DIR:1:/etc/a.tif", "{server}/GTIFF_DIR:1:/etc/a.tif"),
        ("file:///etc/passwd", None),
        ("file://localhost/etc/passwd", None),
        ("FILE:/etc/passwd", None),
        ("/vsizip/etc/a.zip/b.tif", None),
        ("tar://0+9/etc/passwd!/a.tif", None),
        ("vrt:///etc/passwd", None),
        ("a\0b.tif", None),
        ("https://h/a.tif\0/etc/passwd", None),
    ],
)
def test_a_document_on_a_server_names_no_file_of_this_machine(web, tmp_path, href, address):
    server, folder = web
    hostile = item(links=[], assets={"visual": {"href": href}})
    write_json(folder / "items.json", hostile)
    saved = write_json(
        tmp_path / "saved.json", hostile | {"links": [{"rel": "self", "href": f"{server}/a"}]}
    )
    for place in (f"{server}/items.json", saved):
        if address:
            assert addresses(found_in(place)) == {A: address.format(server=server)}
        else:
            with pytest.raises(SourceError, match=r"(?s)names the asset .*refused\..*Give"):
                found_in(place)


def test_a_raster_is_chosen_only_where_there_is_one(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, item())
    message = (
        rf"a\.json: item {A} has not one raster.*`asset`.*: red, green, scl, visual, visual-jp2"
    )
    with pytest.raises(SourceError, match=message):
        found_in(path, None)
    for given in ("nir", "red,nir"):
        with pytest.raises(SourceError, match=r"has no asset nir\. Choose one .*: red, green"):
            found_in(path, given)
    assets = item()["assets"]
    some = {name: assets[name] for name in ("thumbnail", "granule_metadata", "red")}
    write_json(path, item(assets=some))
    assert addresses(found_in(path, None)) == {A: f"{COGS}/{A}/B04.tif"}
    bare = {"preview": {"href": "p.jpg"}, "image": {"href": "i.tif", "roles": ["data"]}}
    write_json(path, item(links=[], assets=bare))
    assert addresses(found_in(path, None)) == {A: str(tmp_path / "i.tif")}


def test_the_manifest_of_a_synthetic_city_is_no_item(make):
    make("city/synth.json", "city/PS-RGB/a.tif")
    with pytest.raises(SourceError, match=r"no file in this folder.*Give the quoted pattern"):
        images_and_labels(["city"])


def test_an_asset_without_items_is_refused(make):
    make("a.tif")
    with pytest.raises(UsageError, match="`asset` applies to STAC items only"):
        images_and_labels(["a.tif"], asset="visual")


def test_ids_are_safe_and_unique(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, item(id="a/../b\n\ud800"))
    assert found_in(path).scenes[0].id == "a_.._b_\\ud800"
    write_json(path, collection_of(item(), item()))
    with pytest.raises(SourceError, match=rf"a\.json: a second item {A}"):
        found_in(path)
    write_json(path, item())
    write_json(tmp_path / "b.json", item())
    with pytest.raises(SourceError, match=rf"b\.json: a second item {A}"):
        found_in(tmp_path)
    (tmp_path / f"{A}.tif").touch()
    with pytest.raises(SourceError, match=rf"{A} is an image and a STAC item"):
        images_and_labels([str(tmp_path / "*.tif"), str(path)], asset="visual")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(item())[:300], r"cannot be read as STAC items \(JSONDecodeError.*download a"),
        ('{"type": "Feature"}', "cannot be read as STAC items.*'id'"),
        *((text, "cannot be read as STAC items") for text in ("", "[" * 100_000, "[]")),
        *(
            (json.dumps(item(**change)), "cannot be read as STAC items")
            for change in (
                *({"assets": {"visual": {"href": href}}} for href in (5, "https://[", "\ud800")),
                *({"id": 3}, {"assets": ["a"]}, {"links": "none"}),
            )
        ),
        (json.dumps(collection_of()), "has no items. Check the search"),
        ('{"type": "Catalog"}', "is a STAC Catalog. Give its items"),
        ('{"type": "Feature", "geometry": {}}', "but vectors. Are `images` and `labels` swapped"),
    ],
)
def test_damage_is_reported_with_the_file_and_the_fix(tmp_path, text, message):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(SourceError, match=rf"a\.json.*{message}"):
        found_in(tmp_path / "a.json")


def test_further_pages_are_noted(tmp_path):
    more = [{"rel": "next", "href": f"{API}/search?next=1", "method": "GET"}]
    write_json(tmp_path / "a.json", collection_of(item(), links=more))
    (note,) = found_in(tmp_path / "a.json").notes
    assert "a.json: the first 1 items of a longer result" in note


def frame_of(items):
    """Return items in the layout of stac-geoparquet: properties are columns."""
    rows = [
        {key: value for key, value in one.items() if key not in ("type", "geometry", "properties")}
        | one["properties"]
        for one in items
    ]
    shapes = [shapely.geometry.shape(one["geometry"]) for one in items]
    frame = geopandas.GeoDataFrame(rows, geometry=shapes, crs="OGC:CRS84")
    frame["datetime"] = frame["datetime"].astype("datetime64[us, UTC]")
    return frame


def test_stac_geoparquet(tmp_path):
    items = [sentinel_item(name, f"{COGS}/{name}") for name in (A, B)]
    del items[1]["assets"]["scl"]  # a null in the table
    frame_of(items).to_parquet(tmp_path / "items.parquet")
    found = found_in(tmp_path / "items.parquet")
    assert addresses(found) == {name: f"{COGS}/{name}/TCI.tif" for name in (A, B)}
    assert found.datetimes[A] == "2024-05-01T08:26:11.123000+00:00"
    with pytest.raises(SourceError, match=rf"item {B} has no asset scl"):
        found_in(tmp_path / "items.parquet", "scl")
    (tmp_path / "items.parquet").write_bytes((tmp_path / "items.parquet").read_bytes()[:-100])
    with pytest.raises(SourceError, match=r"items\.parquet: cannot be read as STAC items"):
        found_in(tmp_path / "items.parquet")


def test_which_addresses_are_items():
    for address in ("a.json", "/d/A.PARQUET", "s3://b/i.geojson", "http://h/i.json?k"):
        assert is_items(address)
    for path in ("search", f"collections/sentinel-2-l2a/items/{A}"):
        assert is_items(f"{API}/{path}")
    for address in ("a.tif", "items", "s3://b/items"):
        assert not is_items(address)
    for path in ("items/a.tif", "a?items.json"):
        assert not is_items(f"https://h/{path}")


STATED = {
    "raster:bands": {"raster:bands": [{"scale": 0.0001, "offset": -0.1}]},
    "bands": {"bands": [{"name": "B4", "raster:scale": 0.0001, "raster:offset": -0.1}]},
    "asset": {"bands": [{"name": "B4"}], "raster:scale": 0.0001, "raster:offset": -0.1},
    "applied": {"raster:bands": [{"scale": 0.0001, "offset": -0.1}]},
    "file": {},
}


@pytest.mark.parametrize("form", STATED)
@pytest.mark.parametrize("asset", ["red", "red,green"])
def test_scale_and_offset_that_only_an_item_states_count(tmp_path, form, asset):
    """Those of files that are stacked count too; an offset that values have already does not."""
    item = sentinel_item("a", str(tmp_path)) | {"links": []}
    item["properties"]["earthsearch:boa_offset_applied"] = form == "applied"
    for name, file in (("red", "B04"), ("green", "B03")):
        path = write_image(tmp_path / f"{file}.tif", texture(40, 50, 1, "uint16"), PLACES["utm"])
        item["assets"][name] |= STATED[form]
        if form == "file":
            with rasterio.open(path, "r+") as image:
                image.scales, image.offsets = [0.0001], [-0.1]
    found = found_in(write_json(tmp_path / "items.json", collection_of(item)), asset)
    (scene,) = plan_of(found, rescale="0,0.5").scenes
    offset = 0.0 if form == "applied" else -0.1
    assert scene.pixels.units == ((0.0001, offset),) * len(asset.split(","))


def test_bands_of_an_asset_have_the_names_of_its_item(tmp_path):
    item = sentinel_item("a", str(tmp_path)) | {"links": []}
    write_image(tmp_path / "TCI.tif", texture(40, 50, 2), PLACES["utm"])
    names = ("red", "nir")
    item["assets"]["visual"]["eo:bands"] = [{"common_name": name} for name in names]
    found = found_in(write_json(tmp_path / "items.json", collection_of(item)))
    assert plan_of(found).meta.bands == names


def test_nodata_that_only_an_item_states_counts_in_a_build(tmp_path):
    """Where the file states none, and no option does."""
    values = texture(70, 90)
    values[:9], values[30:40] = 7, 0
    for name, tag in (("bare", None), ("tagged", 0)):
        write_image(tmp_path / f"{name}.tif", values, PLACES["utm"], nodata=tag)
    items = [
        {
            **sentinel_item(name, str(tmp_path)),
            "assets": {"visual": {"href": str(tmp_path / f"{name}.tif"), "bands": [{"nodata": 7}]}},
            "links": [],
        }
        for name in ("bare", "tagged")
    ]
    found = found_in(write_json(tmp_path / "items.json", collection_of(*items)))
    for number, (options, rows) in enumerate(
        [({}, {0: range(9), 1: range(30, 40)}), ({"nodata": "none"}, {1: range(30, 40)})]
    ):
        for cut in ({"tile": 96}, {"tile": 32, "shard_tiles": 1}):
            out = tmp_path / f"{number}-{cut['tile']}.zarr"
            store = build_of(out, found, rescale="none", levels=1, **cut, **options)
            for i, tile in enumerate(store.image()[...]):
                scene, row, col = (getattr(store.tiles, key)[i] for key in ("scene", "row", "col"))
                inside = tile[: 70 - row, : 90 - col, 0]
                blank = np.isin(np.arange(row, row + len(inside)), rows.get(int(scene), ()))
                assert ((inside == 0) == blank[:, None]).all()
