"""A dry run, compared with the build."""

import json
from pathlib import Path

import pytest
from helpers.archives import write_archive
from helpers.factory import build_of, plan_of, row_of_scenes, texture, truncate, write_scene
from helpers.web import served

import geoprep as gp
from geoprep.building.request import Sources
from geoprep.building.summary import summarise_plan
from geoprep.errors import UsageError
from geoprep.sources.scene import Scene
from geoprep.views.facts import info

SMALL = {"tile": 64, "progress": False}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return row_of_scenes(tmp_path_factory.mktemp("scenes"), 6, 128)


def summary_of(scenes, out):
    return summarise_plan(plan_of(scenes, tile=64), Sources([], [], out))


def test_what_is_planned_is_what_is_built(scenes, tmp_path):
    said = summary_of(scenes, tmp_path / "s.zarr")
    assert list(tmp_path.iterdir()) == []
    facts = info(build_of(tmp_path / "s.zarr", scenes, tile=64))
    assert (said.scenes, said.tiles) == (facts["scenes"], facts["tiles"])
    assert said.splits == {n: s["tiles"] for n, s in facts["splits"].items() if s["tiles"]}
    assert said.memory_bytes == {str(e["level"]): e["ram_bytes"] for e in facts["levels"]}
    assert said.raw_bytes == sum(said.memory_bytes.values())
    assert said.failures == ()
    json.dumps(said.to_json())
    size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert summary_of(scenes, tmp_path / "s.zarr").replaced_bytes == size
    assert summary_of(scenes, "s3://own/s.zarr").free_bytes is None


def test_what_would_fail_is_listed_and_the_rest_counted(scenes, tmp_path):
    bad = write_scene(tmp_path, "bad", texture(64, 64))
    truncate(bad.image, 0.00005)
    bare = Scene("bare", scenes[0].image, None)
    said = summary_of([*scenes, bad, bare], tmp_path / "s.zarr")
    ((name, reason),) = said.failures
    assert name == "bad"
    assert "bad.tif" in reason
    assert said.unlabelled == 1
    assert said.usable_tiles == 24, "tiles without a label are not usable"
    assert said.memory_bytes["64"] == 24 * 64 * 64 * 4


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
def test_members_of_a_local_archive_are_read_in_place(scenes, tmp_path, kind):
    folder = tmp_path / "given"
    folder.mkdir()
    packed = folder / f"set.{kind}"
    files = [Path(file) for scene in scenes for file in (scene.image, scene.label)]
    write_archive(packed, {f"a/{file.name}": file.read_bytes() for file in files})
    given = {"images": f"{packed}!/a/*.tif", "labels": f"{packed}!/a/*.geojson", **SMALL}
    said = gp.build_zarr(**given, out=folder / "s.zarr", dry_run=True)
    assert (said.scenes, said.unlabelled, said.failures, said.unknown) == (6, 0, (), ())
    assert [path.name for path in folder.iterdir()] == [packed.name]
    built = gp.build_zarr(**given, out=folder / "s.zarr")
    assert (said.tiles, said.levels) == (len(built.tiles), built.reader.meta.levels)
    assert set(built.scenes.status) == {"ok"}


def test_a_road_file_in_an_archive_is_unknown(scenes, tmp_path):
    roads = Path(scenes[0].label).read_bytes()
    write_archive(tmp_path / "roads.zip", {"in/roads.geojson": roads})
    given = {"images": [scene.image for scene in scenes], "labels": tmp_path / "roads.zip"}
    said = gp.build_zarr(**given, out=tmp_path / "s.zarr", dry_run=True, **SMALL)
    assert (said.scenes, said.usable_tiles, said.unlabelled) == (6, 24, None)
    assert "roads.zip" in said.unknown[0]


@pytest.mark.parametrize("kind", ["tar", "tar.gz"])
def test_an_archive_of_a_city_is_not_unpacked(tmp_path, kind):
    gp.synthesize("moscow", scenes=2, out=tmp_path / "city", size=64, progress=False)
    (tmp_path / "given").mkdir()
    files = {
        path.relative_to(tmp_path / "city").as_posix(): path.read_bytes()
        for path in (tmp_path / "city").rglob("*.*")
    }
    packed = write_archive(tmp_path / f"given/moscow.{kind}", files)
    given = {"source": packed, "out": tmp_path / "given/m.zarr", **SMALL}
    said = gp.build_zarr("moscow", **given, dry_run=True)
    assert (said.scenes, said.unlabelled, said.failures) == (2, 0, ())
    assert [path.name for path in (tmp_path / "given").iterdir()] == [packed.name]


def test_a_dry_run_needs_no_name_and_tells_the_classes(scenes, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    images = [scene.image for scene in scenes]
    given = {"images": images, "labels": scenes[0].label, **SMALL, "progress": True}
    said = gp.build_zarr(
        **given, classes="road=1,track=2,3", other="nodata", class_field="road_type", dry_run=True
    )
    assert (said.scenes, list(tmp_path.iterdir())) == (6, [])
    notes = capsys.readouterr().err
    assert "classes: road (1), track (2, 3)" in notes
    assert "begin `classes` with background" in notes
    with pytest.raises(UsageError, match="`images` needs `out`"):
        gp.build_zarr(**given)


def test_what_a_build_downloads_is_unknown(scenes, tmp_path):
    out = tmp_path / "s.zarr"
    folder = scenes[0].image.rpartition("/")[0]
    with served(tmp_path) as (address, *_):
        archive, roads = f"{address}/set.zip", f"{address}/roads.gpkg"
        said = gp.build_zarr(images=archive, out=out, dry_run=True, **SMALL)
        assert (said.scenes, said.unknown) == (0, (archive,))
        said = gp.build_zarr(images=folder, labels=roads, out=out, dry_run=True, **SMALL)
        assert (said.scenes, said.unknown) == (6, (roads,))
        assert said.unlabelled is None
    said = gp.build_zarr("moscow", source="s3://no/m.tar.gz", out=out, dry_run=True, **SMALL)
    assert said.unknown == ("s3://no/m.tar.gz",)
    assert list(tmp_path.iterdir()) == []
