"""Scores of rasters of classes against scikit-learn and hand-made cases."""

from __future__ import annotations

import json

import numpy as np
import pytest
import rasterio
from affine import Affine
from click.testing import CliRunner
from helpers.rasters import write_raster
from scipy.ndimage import zoom
from sklearn.metrics import confusion_matrix, f1_score, jaccard_score

import geoprep as gp
from geoprep.classes.class_scores import count_classes
from geoprep.cli.commands import cli
from geoprep.errors import ImageError, LabelError, UsageError

NAMES = ("background", "house", "lake")
PLACE = Affine(0.5, 0, 4e5, 0, -0.5, 6e6)


def write(path, values, names=(), transform=PLACE, **profile):
    """Write (y, x) or (band, y, x) as a GeoTIFF; return its path."""
    tags = {"CLASS_NAMES": json.dumps(names)} if names else None
    return write_raster(path, values.astype(np.uint8), transform=transform, tags=tags, **profile)


@pytest.fixture
def maps(tmp_path):
    """Return folders of ground truth and predictions of two scenes, and their labels."""
    random, truths, founds = np.random.default_rng(0), [], []
    for number in (0, 1):
        truth = random.choice(np.array([0, 1, 2, 255]), (40, 50)).astype(np.uint8)
        found = np.where(random.random(truth.shape) < 0.7, truth, 1)
        found[:2] = 255
        write(tmp_path / "masks" / f"AOI_7_Moscow_classes_chip{number}.tif", truth, nodata=255)
        predicted = tmp_path / "maps" / f"AOI_7_Moscow_PS-RGB_chip{number}.tif"
        write(predicted, found, NAMES, nodata=255)
        truths.append(truth)
        founds.append(found)
    return tmp_path / "masks", tmp_path / "maps", np.stack(truths), np.stack(founds)


def test_scores_are_those_of_scikit_learn(maps):
    masks, folder, truth, found = maps
    frame = gp.score(masks, folder)
    known = truth != 255
    table = confusion_matrix(truth[known], found[known], labels=[0, 1, 2, 255])[:3]
    assert frame.attrs["confusion"] == table.tolist()
    for rows, here in ((frame.attrs["pooled"], slice(None)), (frame.iloc[1], 1)):
        pair = truth[here][known[here]], found[here][known[here]]
        options = {"labels": [0, 1, 2], "average": None}
        assert [rows[f"iou_{name}"] for name in NAMES] == pytest.approx(
            jaccard_score(*pair, **options)
        )
        assert rows["mean_f1"] == pytest.approx(f1_score(*pair, **options).mean())
        assert rows["accuracy"] == pytest.approx((pair[0] == pair[1]).mean())
    assert frame["scene"].tolist() == ["aoi_7_moscow_chip0", "aoi_7_moscow_chip1"]


def test_the_command_prints_tables_and_json(maps):
    masks, folder, *_ = maps
    given = ["score", "--truth", str(masks), "--proposal", str(folder)]
    printed = CliRunner().invoke(cli, given, catch_exceptions=False).output
    assert "boundary F1" in printed
    assert "all pixels" in printed
    found = json.loads(CliRunner().invoke(cli, [*given, "--json"]).output)
    assert found["classes"] == list(NAMES)
    assert found["pooled"]["mean_iou"] == pytest.approx(
        np.mean([found["pooled"][f"iou_{name}"] for name in NAMES])
    )


def test_boundaries_match_within_the_distance():
    truth = np.zeros((40, 40), np.uint8)
    truth[10:30, 10:30] = 1
    for shift, same in ((0, 1.0), (2, 1.0), (5, None)):
        found = np.roll(truth, shift, axis=1)
        score = count_classes(truth, found, 2, 2).figures(("a", "b"))["boundary_f1"]
        assert score == pytest.approx(1) if same else score < 0.8


def test_a_coarser_proposal_is_read_on_the_grid_of_the_truth(tmp_path):
    coarse = np.random.default_rng(0).integers(0, 3, (10, 12)).astype(np.uint8)
    truth = write(tmp_path / "truth" / "a.tif", zoom(coarse, 2, order=0))
    found = write(tmp_path / "found" / "b.tif", coarse, NAMES, PLACE @ Affine.scale(2), nodata=255)
    assert gp.score(truth, found).attrs["pooled"]["mean_iou"] == 1


def test_rasters_without_names_and_classes_of_other_names_are_refused(tmp_path):
    values = write(tmp_path / "values" / "a.tif", np.full((9, 11), 7))
    found = write(tmp_path / "found" / "a.tif", np.zeros((9, 11)), NAMES, nodata=255)
    with pytest.raises(UsageError, match="names wood; the proposal has background, house, lake"):
        gp.score(values, found, classes="wood=7")
    with pytest.raises(UsageError, match="has no class names"):
        gp.score(values, values)


def test_ground_truth_is_read_as_a_build_reads_it(tmp_path):
    """A nodata tag of 0 hides no colour with a 0; palettes count, and pixels that are masked."""
    label = np.random.default_rng(0).integers(0, 3, (9, 11)).astype(np.uint8)
    found = write(tmp_path / "found" / "a.tif", label, NAMES, nodata=255)
    colours = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255]], np.uint8)
    bands = colours[label].transpose(2, 0, 1)
    painted = write(tmp_path / "painted" / "a.tif", bands, photometric="rgb", nodata=0)
    indexed = write(tmp_path / "indexed" / "a.tif", label + 5)
    with rasterio.open(indexed, "r+") as file:
        palette = [(9, 9, 9)] * 5 + [tuple(colour) for colour in colours.tolist()]
        file.write_colormap(1, dict(enumerate(palette)))
    masked = write(tmp_path / "masked" / "a.tif", np.where(label == 2, 0, label))
    with rasterio.open(masked, "r+") as file:
        file.write_mask(label != 2)
    paints = "background=#FF0000,house=#00FF00,lake=#0000FF"
    cases = (painted, paints, label < 3), (indexed, paints, label < 3), (masked, None, label < 2)
    for truth, classes, known in cases:
        attrs = gp.score(truth, found, classes=classes).attrs
        assert np.sum(attrs["confusion"]) == known.sum()
        assert attrs["pooled"]["accuracy"] == 1
    with pytest.raises(LabelError, match="values that no class has: 7"):
        gp.score(indexed, found, classes="background=5,house=6")
    two, right = "background=5,house=6", (label < 2).sum()
    for other, counted in (("nodata", right), ("house", label.size)):
        table = np.array(gp.score(indexed, found, classes=two, other=other).attrs["confusion"])
        assert (np.trace(table), table.sum()) == (right, counted)
    noisy = write(tmp_path / "noisy" / "a.tif", label * 10 + np.uint8(3))
    ten = {"classes": "background=0,house=10,lake=20", "tolerance": 3}
    assert gp.score(noisy, found, **ten).attrs["pooled"]["accuracy"] == 1
    without = gp.score(noisy, found, **ten, label_nodata="23").attrs["confusion"]
    assert np.sum(without) == (label < 2).sum()
    for given in ({"other": "nodata"}, {"label_nodata": "0"}):
        with pytest.raises(UsageError, match=f"`{next(iter(given))}` needs `classes`"):
            gp.score(noisy, found, **given)


def test_a_scene_without_a_proposal_is_missed_and_named(maps):
    masks, folder, truth, _ = maps
    whole = gp.score(masks, folder)
    next(iter(sorted(folder.iterdir()))).unlink()
    frame = gp.score(masks, folder)
    counts = np.array(frame.attrs["confusion"])
    assert frame["note"].tolist() == ["no proposal", ""]
    assert frame["mean_iou"][0] == 0
    assert counts.sum() == np.sum(whole.attrs["confusion"])
    assert (counts[:, 3] >= [(truth[0] == number).sum() for number in range(3)]).all()
    again = folder / "AOI_7_Moscow_PS-MS_chip1.tif"
    again.write_bytes(next(iter(folder.iterdir())).read_bytes())
    with pytest.raises(UsageError, match="are of one scene"):
        gp.score(masks, folder)


def test_values_without_a_class_are_counted_in_the_table_in_json_and_as_a_note(tmp_path):
    """A truth of 0 and 255 without a nodata tag: 255 may be the class itself."""
    truth = np.zeros((40, 50), np.uint8)
    truth[:16] = 255
    write(tmp_path / "truth.tif", truth)
    write(tmp_path / "map.tif", truth == 255, ("background", "house"), nodata=255)
    given = ["score", "--truth", f"{tmp_path}/truth.tif", "--proposal", f"{tmp_path}/map.tif"]
    printed = CliRunner().invoke(cli, given, catch_exceptions=False).output
    assert "no truth" in printed
    assert "40%" in printed
    assert "left out: 800 pixels (40%) without a class in the ground truth" in printed
    found = json.loads(CliRunner().invoke(cli, [*given, "--json"]).output)
    assert found["left_out"] == 800
    assert found["scenes"][0]["left_out_share"] == pytest.approx(0.4)
    right = CliRunner().invoke(cli, [*given, "--classes", "background=0,house=255"]).output
    assert "left out" not in right
    assert "1.000" in right


def test_a_scene_without_truth_is_named(maps):
    masks, folder, *_ = maps
    write(masks / "AOI_7_Moscow_classes_chip0.tif", np.full((40, 50), 255), nodata=255)
    found = gp.score(masks, folder).attrs
    assert found["without_truth"] == ["aoi_7_moscow_chip0"]
    given = ["score", "--truth", str(masks), "--proposal", str(folder)]
    printed = CliRunner().invoke(cli, given, catch_exceptions=False).output
    assert "scene aoi_7_moscow_chip0, of which no pixel has a class" in printed


def test_masks_without_georeference_are_placed_pixel_by_pixel(maps, tmp_path):
    """Named as those of a build: a word for the kind of file may differ."""
    masks, folder, truth, _ = maps
    expected = gp.score(masks, folder).attrs["confusion"]
    (tmp_path / "plain").mkdir()
    (tmp_path / "found").mkdir()
    for i in (0, 1):
        write(tmp_path / "plain" / f"{i}_mask.tif", truth[i], crs=None, nodata=255)
        map_of_scene = folder / f"AOI_7_Moscow_PS-RGB_chip{i}.tif"
        map_of_scene.rename(tmp_path / "found" / f"{i}_sat.tif")
    assert gp.score(tmp_path / "plain", tmp_path / "found").attrs["confusion"] == expected
    write(tmp_path / "plain" / "1_mask.tif", truth[1][1:], crs=None, nodata=255)
    with pytest.raises(ImageError, match="they have 50 x 40 and 50 x 39 pixels"):
        gp.score(tmp_path / "plain", tmp_path / "found")


@pytest.mark.parametrize("options", [{}, {"classes": "background=0,house=1"}])
def test_a_path_that_is_missing_is_told_as_missing(maps, options):
    masks, folder, *_ = maps
    with pytest.raises(UsageError, match=r"`truth` .*gone: no such file or folder"):
        gp.score(masks.with_name("gone"), folder, **options)
    with pytest.raises(UsageError, match=r"`proposal` .*gone: no such file or folder"):
        gp.score(masks, masks.with_name("gone"), **options)


def test_scenes_of_a_split_alone_are_scored(maps, tmp_path):
    masks, folder, *_ = maps
    (tmp_path / "splits.csv").write_text("scene,split\n*chip0,test\n*chip1,train\n")
    for number in (0, 1):
        image = tmp_path / "images" / f"AOI_7_Moscow_PS-RGB_chip{number}.tif"
        write(image, np.full((3, 40, 50), 9 + number))
    store = gp.build_zarr(
        images=f"{tmp_path}/images/*.tif", split_file=tmp_path / "splits.csv",
        out=tmp_path / "a.zarr", progress=False,
    )  # fmt: skip
    (folder / "AOI_7_Moscow_PS-RGB_chip1.tif").unlink()
    found = gp.score(masks, folder, images=store.location, split="test").attrs
    assert [(row["scene"], row["note"]) for row in found["scenes"]] == [("aoi_7_moscow_chip0", "")]
    with pytest.raises(
        UsageError, match="no scene whose tiles are all val; scenes are test; train"
    ):
        gp.score(masks, folder, images=store.location, split="val")
    with pytest.raises(UsageError, match="`split` is one of a store: give the store as `images`"):
        gp.score(masks, folder, split="test")
    (tmp_path / "maps" / "AOI_7_Moscow_PS-RGB_chip0.tif").rename(
        tmp_path / "maps" / "AOI_7_Moscow_PS-RGB_chip1.tif"
    )
    with pytest.raises(UsageError, match="has no scene of the split"):
        gp.score(masks, folder, images=store.location, split="test")
