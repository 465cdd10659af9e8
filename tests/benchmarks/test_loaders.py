import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import loaders as benchmark
from benchmarks.child import ChildError
from benchmarks.common import Result
from benchmarks.loading import memory, peers, report, residency, tax
from benchmarks.loading.data import Sizes, random_tiles, synthetic_store, write_files
from benchmarks.loading.held import tree_held
from benchmarks.loading.load import measure_load, peak_over_split
from benchmarks.loading.memory import batch_bytes, expected_bytes, run
from benchmarks.loading.throughput import Copy, drain
from benchmarks.loading.worker import Case
from benchmarks.peers.base import Task
from loaders import BatchLoader, RamTiles

SIZES = Sizes(scenes=4, scene_side=192, batch_size=4, crop=64)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return synthetic_store(tmp_path_factory.mktemp("city"), SIZES, 2)


@pytest.fixture(scope="module")
def task(store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    write_files(RamTiles.load(store, split="all", progress=False), folder)
    return Task(folder, SIZES.batch_size, 1, str(store))


def test_classic_batch_takes_what_the_arithmetic_says():
    image, mask = 32 * 512 * 512 * 3 * 4, 32 * 512 * 512 * 8
    assert (image, mask) == (100_663_296, 67_108_864)
    assert batch_bytes("classic", 32, 512, 3) == image + mask
    assert 8 * batch_bytes("classic", 32, 512, 3) == pytest.approx(1.34e9, rel=0.01)
    assert 64 * batch_bytes("classic", 32, 512, 3) == pytest.approx(11e9, rel=0.03)


def test_arithmetic_is_that_of_the_tensors_themselves():
    image = torch.zeros(2, 3, 8, 8, dtype=torch.float32)
    mask = torch.zeros(2, 8, 8, dtype=torch.int64)
    assert batch_bytes("classic", 2, 8, 3) == image.nbytes + mask.nbytes
    assert batch_bytes("uint8", 2, 8, 3) == image.byte().nbytes + mask.byte().nbytes


def test_each_worker_has_a_batch_beside_the_one_in_the_loop():
    one = batch_bytes("uint8", 32, 512, 3)
    assert one == pytest.approx(33.6e6, rel=0.01)
    assert expected_bytes("uint8", 0, 32, 512, 3) == one
    assert expected_bytes("tiles", 8, 32, 512, 3) == 9 * one
    assert expected_bytes("threads", 8, 32, 512, 3) == 10 * one


def test_memory_is_told_per_worker_and_in_all(monkeypatch, tmp_path, capsys):
    def found(case):
        usage = {"uss": 10_000_000 * (1 + case.workers), "kept": 20_000_000 * (1 + case.workers)}
        workers = [] if case.kind == "threads" else [(7_000_000, 6_000_000)] * case.workers
        others = [(5_000_000, 4_000_000)] if case.start == "forkserver" else []
        base = {"uss": 10_000_000, "kept": 20_000_000}
        told = {"workers": workers, "others": others, "pss": [0, 30_000_000], "peaks": [8e6]}
        return {"base": base, "held": usage, **told}

    monkeypatch.setattr(memory, "run", found)
    tiles = random_tiles(3, 32, 3)
    settings = {"batch_size": 4, "memory_workers": [0, 2], "threads": 1, "crop": 8, "tile": 32}
    result = Result("loaders", {**settings, "tiles": 3, "bands": [1, 2, 3]})
    memory.measure_memory(result, tmp_path, tiles)
    assert result["memory.threads.2.total"].median == 40
    assert result["memory.threads.2.uss"].median == 10
    assert result["memory.spawn.2.uss"].median == 7
    assert result["memory.forkserver.2.pss"].median == 13
    assert result["memory.interpreter.server.pss"].median == 4
    assert "memory.spawn.0.total" not in result.figures
    report.print_tables(result)
    said = capsys.readouterr().out
    for title in ("BatchLoader, threads: 2", "Dataset, fork: 64", "alone, spawn", "once"):
        assert title in said
    report.draw(result, tmp_path / "m.png")
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")


def test_shared_memory_that_nobody_maps_is_held():
    before = tree_held().kept
    fd = os.memfd_create("batch")
    try:
        os.write(fd, bytes(32 << 20))
        assert tree_held().kept - before >= 32 << 20
    finally:
        os.close(fd)
    assert tree_held().kept - before < 16 << 20


def test_shared_memory_is_held_once_however_many_descriptors_there_are():
    fd = os.memfd_create("batch")
    os.write(fd, bytes(32 << 20))
    before = tree_held().kept
    again = os.dup(fd)
    assert abs(tree_held().kept - before) < 16 << 20
    os.close(fd)
    os.close(again)


def test_copy_moves_the_bytes_of_a_batch():
    tiles = random_tiles(6, 32, 3)
    copy = Copy(tiles, 2, 32, threads=1)
    done = copy(0.0)
    assert done.samples == 2
    assert done.nbytes == done.samples * 32 * 32 * 4
    stretches = {tiles.image[i : i + 2].tobytes() for i in (0, 2, 4)}
    assert all(image.tobytes() in stretches for image, _ in copy.slots[: done.samples // 2])


def test_drain_counts_every_sample_of_whole_epochs():
    tiles = random_tiles(10, 32, 3)
    loader = BatchLoader(tiles, 4, drop_last=False, threads=1)
    done = drain(loader, 0.0001)
    epochs = done.samples // len(tiles)
    assert done.samples == epochs * len(tiles)
    assert done.nbytes == done.samples * 32 * 32 * 4
    assert len(done.batches) == epochs * (len(loader) - 1)


def test_peak_is_counted_beyond_the_split(store):
    assert -(1 << 20) < peak_over_split(store) < 150_000_000


def test_the_loader_is_judged_by_its_share_of_a_step(monkeypatch):
    def pace(milliseconds):
        seconds = 2e-3 * milliseconds
        return {"steps": 2, "seconds": seconds, "waited": 0.1 * seconds, "cpu_seconds": seconds}

    answer = {"loader": [pace(102)] * 2, "cached": [pace(100)] * 2, "prepared": [pace(96)] * 2}
    asked = []
    monkeypatch.setattr(tax, "ask", lambda module, task: asked.append(task) or answer)
    settings = {"crop": 32, "seconds": 0.01, "repeats": 2, "threads": 2, "parts": ["tax"]}
    result = Result("loaders", {**settings, "memory_workers": [0, 1], "batch_size": 4})
    tax.measure_tax(result, "a.zarr", random_tiles(6, 48, 3), batch_size=3)
    assert asked[0]["of"] == [1, 2]
    assert asked[0]["batch_size"] == 3
    assert result["tax.over_cached"].median == pytest.approx(1.02)
    assert result["tax.over_prepared"].median == pytest.approx(102 / 96)
    assert result["tax.loader.rate"].median == pytest.approx(3 / 0.102)
    assert result["tax.loader.waited"].median == pytest.approx(0.1)
    share = result["tax.filling.cpu"].median / 100
    assert result["tax.share"].median == pytest.approx(share, rel=0.5)
    assert result["tax.share"].at_most == tax.SHARE


def test_peer_delivers_every_pixel_and_says_how_fast(task):
    with peers.start("uint8_dataloader", task) as conversation:
        assert conversation.answer()["versions"]["torch"] == torch.__version__
        assert conversation.ask("prepare") == {}
        assert conversation.ask("open")["seconds"] >= 0
        first = conversation.ask("first")
        assert first.pop("seconds") > 0
        assert first == peers.sums(task)
        assert conversation.ask("hold") == conversation.ask("release") == {}
        rate = conversation.ask("rate", seconds=0.01)
        assert rate["tiles"] % len(task.image) == 0 < rate["tiles"]
        pid = conversation.process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_failing_peer_says_why(task):
    lost = Task(task.folder / "nowhere", 4, 0)
    with peers.start("uint8_dataloader", lost) as conversation:
        conversation.answer()
        with pytest.raises(ChildError, match="nowhere"):
            conversation.ask("open")


def test_loader_that_loses_pixels_is_refused():
    truth = {"tiles": 4, "image_sum": 1e6, "speed_sum": 500}
    peers._compare(dict(truth, image_sum=1e6 + 0.5), truth)
    for name, value in (("tiles", 3), ("image_sum", 1.001e6), ("speed_sum", 499)):
        with pytest.raises(ChildError, match=name):
            peers._compare(dict(truth, **{name: value}), truth)


@pytest.mark.slow
def test_peers_are_put_next_to_ours_and_missing_ones_skipped(task, monkeypatch):
    monkeypatch.setattr(peers, "PEERS_PYTHON", Path("/nowhere"))
    names = ("ours", "ours_crops", "uint8_dataloader_inline", "classic_dataloader")
    absent = peers.Entry("litdata_loader", "LitData")
    entries = [entry for entry in peers.ENTRIES if entry.name in names] + [absent]
    settings = {"quick": True, "crop": 64, "seconds": 0.01, "repeats": 1}
    result = Result("loaders", settings, {"cores": 2})
    peers.measure_peers(result, task, entries)
    for name in names:
        assert result[f"peers.{name}.rate"].median > 0
        importing, opening = (result[f"peers.{name}.{f}"].median for f in ("import", "open"))
        assert result[f"peers.{name}.start"].median == pytest.approx(importing + opening)
    for name in ("ours", "ours_crops"):
        best = max(result[f"peers.{n}.rate"].median for n in names[2:])
        over = result[f"peers.{name}.rate"].median / best
        assert result[f"peers.{name}.over_best"].median == pytest.approx(over)
    assert any(note.startswith("LitData: left out, litdata is not") for note in result.notes)


@pytest.mark.slow
def test_worker_holds_the_batches_of_its_kind(store):
    tiles = RamTiles.load(store, split="all", progress=False)
    found = {}
    for kind, start in (("threads", ""), ("classic", "fork")):
        found[kind] = run(Case(kind, start, 1, 16, str(store)))
    batch = batch_bytes("classic", 16, tiles.side, 3)
    assert found["classic"]["held"]["kept"] - found["classic"]["base"]["kept"] >= 2 * batch
    assert len(found["classic"]["workers"]) == 1
    assert found["threads"]["workers"] == []


def test_quick_run_records_what_it_promises(store, tmp_path):
    record, picture = tmp_path / "loaders.json", tmp_path / "loaders.png"
    options = ["--quick", "--repeats", "1", "--seconds", "0.02", "--threads", "1"]
    only = ["--only", "throughput", "--only", "load"]
    out = ["--json", str(record), "--plot", str(picture)]
    assert benchmark.main([str(store), *options, *only, *out]) == 0
    assert picture.read_bytes()[1:4] == b"PNG"
    written = json.loads(record.read_text())
    assert written["benchmark"] == "loaders"
    assert written["settings"]["sets"] == ["96x3", "160x3", "128x8"]
    figures = written["figures"]
    for name in written["settings"]["sets"]:
        for kind in ("whole", "crops"):
            at = f"throughput.{name}.{kind}"
            rate, gb, copy, over = (
                figures[f"{at}.{figure}"]["median"]
                for figure in ("rate", "gb", "copy.gb", "over_copy")
            )
            assert min(rate, gb, copy) > 0
            assert figures[f"{at}.start"]["median"] > 0 < figures[f"{at}.first"]["median"]
            assert over == pytest.approx(gb / copy)
    assert figures["load.over_zarrs"]["median"] == pytest.approx(
        figures["load.ours.rate"]["median"]
        / max(figures[f"load.zarrs_{way}.rate"]["median"] for way in ("whole", "by_shard"))
    )
    assert {"load.peak", "load.zarrs_touched.rate"} <= set(figures)


def test_random_tiles_and_files_hold_the_same_pixels(tmp_path):
    tiles = random_tiles(2, 32, 8)
    write_files(tiles, tmp_path)
    task = Task(tmp_path, 1, 0)
    assert np.array_equal(task.image, tiles.image)
    assert np.array_equal(task.speed, tiles.speed)
    import rasterio

    images, speeds = task.tiffs()
    with rasterio.open(images[1]) as file:
        assert np.array_equal(file.read().transpose(1, 2, 0), tiles.image[1])
    with rasterio.open(speeds[0]) as file:
        assert np.array_equal(file.read(1), tiles.speed[0])
    assert Task.parse(task.dump()) == task


def test_loading_is_measured_without_zarrs_and_says_so(store, monkeypatch):
    """As in the environment that `make demo` makes."""
    monkeypatch.setattr("benchmarks.loading.load.find_spec", lambda name: None)
    result = Result("loaders", {"quick": True, "repeats": 1}, {"cores": 2})
    measure_load(result, store)
    assert result["load.ours.rate"].median > 0
    assert not any("zarrs" in name for name in result.figures)
    assert result.notes == ["load: zarrs is not installed, so left out: pip install zarrs"]


def test_residencies_are_put_next_to_each_other(store, capsys):
    settings = {"batch_size": 4, "crop": 64, "threads": 1, "seconds": 0.01, "repeats": 1}
    result = Result("loaders", {**settings, "memory_workers": []})
    tiles = RamTiles.load(store, split="all", progress=False)
    residency.measure_residency(result, store, tiles)
    for kind in residency.RESIDENCIES:
        assert result[f"residency.{kind}.whole.rate"].median > 0
        assert result[f"residency.{kind}.crops.cpu"].median > 0
    held = [result[f"residency.{kind}.held"].median for kind in ("compressed", "ram")]
    assert held[0] < held[1]
    assert held[1] >= tiles.nbytes / 1e6
    report.print_tables(result)
    assert 'keep="compressed"' in capsys.readouterr().out
