"""The page shows every scene and asks nobody for anything; a real browser opens it."""

import base64
import io
import json
import re

import numpy as np
import pytest
from helpers.browser import find_browser
from matplotlib.image import imread
from PIL import Image

from geoprep.errors import OutputError, StoreError, UsageError
from geoprep.executors.threads import Threads
from geoprep.palette import BACKGROUND_COLOUR, SPEED_COLOURS
from geoprep.speed import NODATA, UNKNOWN_SPEED
from geoprep.store.reader import StoreReader
from geoprep.store.scenes import find_scene, read_label, scene_splits
from geoprep.store.schema import SPLITS
from geoprep.views.page import make_page, records, writing
from geoprep.views.page.records import areas_of, page_data, script_json

HOSTILE = (
    "</script><script>document.title='owned'</script><!--<img src=x onerror=alert(1)>\u2028&amp;"
)


@pytest.fixture(scope="module")
def store(small_store):
    opened = StoreReader.open(small_store)
    opened.scenes.id[0] = HOSTILE  # of this object, not of the store on the disk
    opened.scenes.reason[find_scene(opened, "city_broken")] = HOSTILE
    return opened


@pytest.fixture(scope="module")
def page(store, tmp_path_factory):
    return make_page(store, tmp_path_factory.mktemp("page") / "a page #1?.html")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    return find_browser(tmp_path_factory.mktemp("browser"))


def cards(dom):
    """Return the ids of the scenes whose cards are in a document."""
    main = re.search(r'<main id="grid".*?</main>', dom, re.DOTALL)[0]
    return re.findall(r'data-scene="([^"]*)"', main)


def block(page, name):
    """Return a picture that a page holds as text."""
    found = re.search(rf'id="{name}">([^<]*)</script>', page.read_text())
    return np.array(Image.open(io.BytesIO(base64.b64decode(found[1]))))


def colours_of(path):
    picture = np.round(imread(path)[..., :3] * 255).astype(int)
    return {tuple(colour) for colour in np.unique(picture.reshape(-1, 3), axis=0).tolist()}


def test_page_is_one_file_that_names_no_address(page, tmp_path):
    assert {path.name for path in page.parent.iterdir()} == {page.name}
    text = page.read_text()
    addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.[\w]+[^\s\"']*", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, which nobody asks for
    assert "default-src 'none'" in text
    assert "unsafe" not in text


def test_scenes_of_no_split_are_unused(small_store, tmp_path):
    opened = StoreReader.open(small_store)
    assert page_data(opened, 64)["splits"] == list(SPLITS)
    opened.tiles.split[opened.tiles.scene == 0] = len(SPLITS)
    data = page_data(opened, 64)
    assert data["splits"] == [*SPLITS, "unused"]
    assert [scene["split"] == "unused" for scene in data["scenes"]][:2] == [True, False]
    make_page(opened, tmp_path / "a.html")


@pytest.mark.parametrize("scene", ["city_1", "utm_north", "utm_south"])
def test_mask_of_a_page_holds_the_speeds_of_the_store_and_north_is_up(store, page, scene):
    at = find_scene(store, scene)
    flip = -1 if scene == "utm_south" else 1
    mask, speed = block(page, f"mask-{at}"), read_label(store, at)[::flip]
    known = speed != NODATA
    np.testing.assert_array_equal(mask[known], speed[known])
    assert set(np.unique(mask[~known])) <= {UNKNOWN_SPEED - 1, NODATA}


def test_texts_of_scenes_cannot_end_their_element():
    text = script_json({"id": HOSTILE + "\udcff"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"id": HOSTILE + "\udcff"}
    text.encode("utf-8")


def test_areas_far_apart_have_maps_of_their_own():
    moscow, mumbai = [[37.60, 55.75], [37.61, 55.76]], [[72.8, 19.0], [72.9, 19.1]]
    rings = [mumbai, moscow, None, moscow, mumbai]
    assert areas_of([{"ring": ring} for ring in rings]) == [0, 1, -1, 1, 0]


def test_what_cannot_be_written_leaves_what_was_there(store, tmp_path, monkeypatch):
    out = tmp_path / "a.html"
    make_page(store, out)
    before = out.read_text()

    def broken(*_, **__):
        raise StoreError("damaged")

    monkeypatch.setattr(writing, "scene_pictures", broken)
    with pytest.raises(StoreError, match="damaged"):
        make_page(store, out, overwrite=True)
    assert out.read_text() == before
    assert {path.name for path in tmp_path.iterdir()} == {"a.html"}
    with pytest.raises(UsageError, match=r"a\.png: use a name that ends in \.html"):
        make_page(store, tmp_path / "a.png")


def test_progress_counts_the_scenes_that_have_pixels(store, tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "PER_ROUND", 2)
    monkeypatch.setattr(writing, "Threads", lambda: Threads(2))
    seen = []
    make_page(store, tmp_path / "a.html", report=lambda *at: seen.append(at))
    built = int(np.isin(store.scenes.status, ["ok", "unlabelled"]).sum())
    assert seen[-1] == (built, built)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert len(seen) > 1


def test_filters_follow_the_address(store, page, browser):
    everything = cards(browser.dom(page))
    assert len(everything) == len(store.scenes)
    assert not browser.complaints
    splits = np.array([SPLITS[split] for split in scene_splits(store)])
    ok = (splits == "train") & (store.scenes.status == "ok")
    assert len(cards(browser.dom(page, "split=train&status=ok"))) == ok.sum()
    assert cards(browser.dom(page, "q=CITY_1&road=0.5-100&sort=id")) == ["city_1"]
    assert not browser.complaints


def test_hostile_texts_are_shown_and_not_run(page, browser):
    dom = browser.dom(page, "status=failed")
    assert "<title>small</title>" in dom
    assert "&lt;/script&gt;" in dom
    assert "<img src=x" not in dom.replace("\\u003c", "")
    assert not browser.complaints


def test_nothing_is_asked_of_the_network(page, browser, tmp_path):
    greedy = tmp_path / "greedy.html"
    greedy.write_text('<img src="http://127.0.0.1:9/x.png">')
    browser.dom(greedy)
    assert browser.asked == ["http://127.0.0.1:9/x.png"]  # such a thing is seen
    browser.dom(page, "scene=city_1")
    assert not browser.asked


def test_scene_is_shown_at_full_size(page, browser, tmp_path):
    shown = colours_of(browser.picture(page, "scene=city_1&view=mask", tmp_path / "seen.png"))
    assert not browser.complaints
    assert BACKGROUND_COLOUR in shown
    assert SPEED_COLOURS[6] in shown  # the motorway


def test_pictures_of_many_pixels_are_reduced_to_a_total(store, tmp_path, monkeypatch):
    full = page_data(store, 64)["scenes"]
    pixels = sum(scene["width"] * scene["height"] for scene in full if scene["built"])
    monkeypatch.setattr(records, "MOST_PIXELS", pixels / 3)
    reduced = page_data(store, 64)["scenes"]
    assert {scene["step"] for scene in full} == {1}
    assert {scene["step"] for scene in reduced if scene["built"]} == {2}
    number = next(number for number, scene in enumerate(full) if scene["built"])
    small = block(make_page(store, tmp_path / "a.html"), f"mask-{number}")
    assert small.shape == (full[number]["height"] // 2, full[number]["width"] // 2)


def test_a_full_disk_is_named(store, tmp_path):
    from helpers.disks import small_disk

    with small_disk(tmp_path / "disk", 128) as disk:
        with pytest.raises(OutputError, match="no space left"):
            make_page(store, disk / "a.html")
        assert not any(disk.iterdir())
