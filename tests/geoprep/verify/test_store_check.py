"""Damage anywhere in a store is found and named; a sound store is found sound."""

import contextlib
import json
import math
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers.consistency import assert_consistent
from helpers.factory import build_of, row_of_scenes

from geoprep.cli.progress import print_verification
from geoprep.errors import StoreError
from geoprep.store.layout import shard_key
from geoprep.store.opening import quiet_zarr
from geoprep.store.reader import StoreReader
from geoprep.store.scenes import read_image
from geoprep.store.shards import ShardWriter
from geoprep.texts import counted
from geoprep.verify import store_check
from geoprep.verify.store_check import Problem, verify
from geoprep.views.facts import info


@pytest.fixture(scope="module")
def tiny_store(tmp_path_factory) -> Path:
    """Two scenes, eight tiles, two levels: quick to verify a hundred times."""
    folder = tmp_path_factory.mktemp("tiny")
    scenes = row_of_scenes(folder, 2, 64)
    build_of(folder / "tiny.zarr", scenes, tile=32, levels=2, shard_tiles=4)
    return folder / "tiny.zarr"


@pytest.fixture
def tiny_copy(tiny_store, tmp_path) -> Path:
    """A copy of that store, whose files a test may damage."""
    return Path(shutil.copytree(tiny_store, tmp_path / "tiny.zarr"))


def _flipped_at(file: Path, position: int, value: int, store: Path) -> tuple[Problem, ...]:
    """Return what verify says while one byte of a file is another; then mend it."""
    sound = file.read_bytes()
    assert sound[position] != value
    file.write_bytes(sound[:position] + bytes([value]) + sound[position + 1 :])
    try:
        return verify(store, workers=1).problems
    except StoreError as error:
        return (Problem.of(".", str(error)),)
    finally:
        file.write_bytes(sound)


def test_sound_store_has_no_problems(small_store):
    report = verify(small_store, workers=2)
    assert report.problems == ()
    assert report.ok
    store = StoreReader.open(small_store)
    assert (report.tiles, report.scenes) == (len(store.tiles), len(store.scenes))
    assert report.chunks == len(store.tiles) * 4
    assert report.bytes == sum(f.stat().st_size for f in small_store.rglob("*") if f.is_file())


def test_tables_and_pixels_of_every_kind_of_scene_are_consistent(small_store):
    assert_consistent(small_store)


def test_flipped_byte_in_any_file_is_found(tiny_copy):
    store, rng = tiny_copy, random.Random(0)
    files = sorted(file for file in store.rglob("*") if file.is_file())
    for file in files:
        name = file.relative_to(store).as_posix()
        position = rng.randrange(file.stat().st_size)
        value = file.read_bytes()[position] ^ rng.randrange(1, 256)
        problems = _flipped_at(file, position, value, store)
        assert problems, f"byte {position} of {name}"
        array = name.split("/c/")[0].removesuffix("zarr.json").rstrip("/") or "."
        assert any(p.array == array for p in problems), (name, problems)
        if array.split("/")[0].isdigit() and "/c/" in name:
            assert problems[0].shard == int(name.split("/c/")[1].split("/")[0])


def test_flipped_byte_of_chunk_is_blamed_on_its_tile_and_scene(tiny_copy):
    file = tiny_copy / shard_key("32/image", 1)
    problems = _flipped_at(file, 0, file.read_bytes()[0] ^ 1, tiny_copy)
    assert [(p.array, p.shard, p.chunk, p.scene) for p in problems] == [
        ("32/image", 1, 4, "quay_1")
    ]


@pytest.mark.parametrize("from_end", [1, 3, 4, 5, 20, 68])
def test_flipped_byte_of_shard_index_is_found(tiny_copy, from_end):
    file = tiny_copy / shard_key("16/speed", 0)
    position = file.stat().st_size - from_end
    problems = _flipped_at(file, position, file.read_bytes()[position] ^ 0x80, tiny_copy)
    told = "the index does not match its checksum"
    assert problems[0] == Problem("16/speed", 0, None, None, told)


def test_flipped_byte_of_root_metadata_is_found(tiny_copy):
    file = tiny_copy / "zarr.json"
    sound, rng = file.read_bytes(), random.Random(1)
    attribute = sound.index(b'"zarr_format"')
    places = rng.sample(range(attribute), 60) + rng.sample(range(attribute, len(sound)), 40)
    for position in places:
        # Printable bytes are the hard ones: most keep the document valid JSON.
        value = rng.choice([b for b in b"0123456789abcxyz ,." if b != sound[position]])
        problems = _flipped_at(file, position, value, tiny_copy)
        if not problems:  # one blank for another is no damage
            changed = sound[:position] + bytes([value]) + sound[position + 1 :]
            assert json.loads(changed) == json.loads(sound), (position, chr(value))


def test_missing_files_are_named(store_copy, capsys):
    (store_copy / shard_key("64/speed", 2)).unlink()
    (store_copy / "road_fraction/c/0").unlink()
    (store_copy / "scenes/crs/zarr.json").unlink()
    report = verify(store_copy, workers=1)
    found = {(p.array, p.shard) for p in report.problems}
    assert {("64/speed", 2), ("road_fraction", None), ("scenes/crs", None)} <= found
    print_verification(report)
    said = capsys.readouterr().out
    assert "64/speed, shard 2: the file 64/speed/c/2/0/0 is missing\n" in said
    assert "road_fraction: the file road_fraction/c/0 is missing\n" in said
    assert f"{counted(len(report.problems), 'problem')} in" in said


def test_files_that_do_not_belong_are_named(store_copy):
    (store_copy / "64/image/c/0/0/0/.0.77.partial").write_bytes(b"half a shard")
    (store_copy / "notes.txt").write_text("mine")
    problems = verify(store_copy, workers=1).problems
    assert [(p.array, p.shard) for p in problems] == [("64/image", 0), ("notes.txt", None)]
    assert "interrupted build" in problems[0].message


def _forget_files(store: Path, prefix: str) -> None:
    """Take away the digests of files whose names begin so."""
    ledger = zarr.open_group(store, mode="r+", use_consolidated=False)["ledger"]
    files = dict(ledger.attrs.pop("files"))
    if kept := {name: files[name] for name in files if not name.startswith(prefix)}:
        ledger.attrs["files"] = kept
    with quiet_zarr():
        zarr.consolidate_metadata(store)


def test_shard_that_is_not_the_one_in_the_ledger_is_found(store_copy):
    """All of its checksums match, as in a shard of another build."""
    meta, path = StoreReader.open(store_copy).meta, store_copy / shard_key("32/image", 0)
    tiles = np.asarray(zarr.open_group(store_copy, mode="r")["32/image"][: meta.shard_tiles])
    writer = ShardWriter(path, meta.shard_tiles, meta.codec)
    for each in tiles // 2:
        writer.add(each)
    writer.close()
    (problem,) = verify(store_copy, workers=1).problems
    assert (problem.array, problem.shard) == ("32/image", 0)
    assert "ledger" in problem.message


@pytest.mark.parametrize(
    ("array", "place", "value"),
    [
        ("scene", slice(None), "reversed"),
        ("transform", (0, 0), np.nan),
        ("histogram/band", (0, 9), 10**6),
        ("scenes/status", 0, "perhaps"),
    ],
)
def test_edited_table_is_found(store_copy, array, place, value):
    table = zarr.open_group(store_copy, mode="r+")[array]
    values = np.array(table[...])
    values[place] = values[::-1].copy() if value == "reversed" else value
    table[...] = values
    problems = verify(store_copy, workers=1).problems
    assert [p.array for p in problems] == [array], problems


@pytest.mark.parametrize(
    ("prefix", "says"),
    [
        ("split/c/0", "split: the ledger has no digest of the file split/c/0"),
        ("", "ledger: it has no digests of files"),
    ],
)
def test_file_that_the_ledger_does_not_list_is_found(store_copy, prefix, says):
    _forget_files(store_copy, prefix)
    (problem,) = verify(store_copy, workers=1).problems
    assert str(problem) == says


@pytest.mark.parametrize(
    ("array", "key", "value"),
    [
        ("64/image", "fill_value", 9),
        ("32/speed", "dimension_names", ["tile", "x", "y"]),
        ("split", "dimension_names", ["scene"]),
    ],
)
def test_array_that_does_not_fit_the_attribute_is_found(store_copy, array, key, value):
    root = json.loads((store_copy / "zarr.json").read_text())
    own = json.loads((store_copy / array / "zarr.json").read_text())
    own[key] = root["consolidated_metadata"]["metadata"][array][key] = value
    (store_copy / "zarr.json").write_text(json.dumps(root, indent=2))
    (store_copy / array / "zarr.json").write_text(json.dumps(own, indent=2))
    problems = verify(store_copy, workers=1).problems
    assert array in {p.array for p in problems}, problems


def test_copy_of_metadata_that_differs_is_found(store_copy):
    file = store_copy / "64/image/zarr.json"
    own = json.loads(file.read_text())
    own["attributes"] = {"mine": 1}
    file.write_text(json.dumps(own, indent=2))
    (problem,) = verify(store_copy, workers=1).problems
    assert problem.array == "64/image"
    assert "differs from its copy" in problem.message


def _places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value of a JSON document."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from _places(value, (*path, key))


NONSENSE = (None, True, -1, 0, 7, 10**30, 0.5, math.nan, "x", "", [], [1], {}, {"a": [{}]}, [[[]]])


def _mutated(document: Any, rng: random.Random) -> Any:
    """Change one value of a document, or drop its key; half of the time in our own attribute."""
    places = list(_places(document))
    ours = [place for place in places if place[:2] == ("attributes", "geoprep")]
    *way, key = rng.choice(ours if ours and rng.random() < 0.5 else places)
    inner = document
    for step in way:
        inner = inner[step]
    if rng.random() < 0.25:
        del inner[key]
    elif type(inner[key]) is int and rng.random() < 0.5:
        inner[key] = rng.choice([-inner[key], inner[key] * 2, inner[key] + 1, float(inner[key])])
    else:
        inner[key] = rng.choice(NONSENSE)
    return document


def _content(text: str) -> str:
    """Return a document without the empty metadata that Zarr puts into its copies of groups."""
    document = json.loads(text)
    for copy in document.get("consolidated_metadata", {"metadata": {}})["metadata"].values():
        copy.pop("consolidated_metadata", None)
    return json.dumps(document, sort_keys=True)


def test_edited_metadata_never_end_in_a_traceback(tiny_copy):
    store, rng = tiny_copy, random.Random(0)
    others = sorted(store.rglob("*/zarr.json"))
    for _ in range(40):
        file = store / "zarr.json" if rng.random() < 0.75 else rng.choice(others)
        sound = file.read_text()
        edited = json.dumps(_mutated(json.loads(sound), rng))
        file.write_text(edited)
        for look in (info, lambda opened: read_image(opened, 0)):
            with contextlib.suppress(StoreError):
                look(StoreReader.open(store))
        with contextlib.suppress(StoreError):
            found = verify(store, workers=1).problems
            assert found or _content(edited) == _content(sound), file
        file.write_text(sound)


def test_progress_counts_shards_and_threads_agree(small_store, store_copy):
    (store_copy / shard_key("64/image", 1)).write_bytes(b"short")
    seen: list[tuple[int, int]] = []
    one = verify(store_copy, workers=1, report=lambda done, total: seen.append((done, total)))
    two = verify(store_copy, workers=2)
    assert one.problems == two.problems
    assert "cut short" in one.problems[0].message
    shards = len(list(small_store.glob("[0-9]*/*/c/*")))
    assert seen == [(done, shards) for done in range(1, shards + 1)]


def test_a_number_of_tiles_that_only_an_array_claims_takes_no_memory(tiny_copy, monkeypatch):
    monkeypatch.setattr(store_check, "_tile_count", lambda *_: 10**12)
    report = verify(tiny_copy)
    assert any("is missing" in problem.message for problem in report.problems)
    assert len(report.problems) < 1000
