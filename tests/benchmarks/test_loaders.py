import os
from dataclasses import asdict

import pytest
import torch

from benchmarks import loaders as benchmark
from benchmarks.child import ChildError
from benchmarks.common import Result
from benchmarks.loading import other_loaders
from benchmarks.loading.data import LoadingSizes, synthetic_store, write_files
from benchmarks.loading.device_loop import LOOPS, QUICK_LOOPS, LoopServer
from benchmarks.loading.peer_task import Task
from benchmarks.loading.peers import PEERS
from benchmarks.loading.rates import RESIDENCIES, measure_residency
from benchmarks.tables import print_report
from loaders import RamTiles

OTHERS = list(PEERS)[6:]
"""Packages that are installed apart."""
SIZES = LoadingSizes(scenes=4, scene_side=192, batch_size=4, crop=64)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return synthetic_store(tmp_path_factory.mktemp("city"), SIZES, 2)


@pytest.fixture(scope="module")
def task(store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    write_files(RamTiles.load(store, split="all", progress=False), folder)
    return Task(str(folder), SIZES.batch_size, 1, str(store))


def entry_of(name):
    return next(entry for entry in other_loaders.ENTRIES if entry.name == name)


def test_peer_returns_every_pixel_and_its_rate(task):
    with other_loaders.start(entry_of("uint8"), task) as conversation:
        assert conversation.answer()["torch"].partition("+")[0] in torch.__version__
        assert conversation.ask("prepare") == {}
        assert conversation.ask("open")["seconds"] >= 0
        first = conversation.ask("first")
        assert first.pop("seconds") > 0
        assert first == other_loaders.sums(task)
        assert conversation.ask("hold") == conversation.ask("release") == {}
        rate = conversation.ask("rate", seconds=0.01)
        assert rate["tiles"] % len(task.image) == 0 < rate["tiles"]
        pid = conversation.process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OTHERS])
def test_other_package_returns_every_pixel(name, task):
    entry = entry_of(name)
    if not other_loaders.PEERS_PYTHON.exists() and not other_loaders._installed(entry):
        pytest.skip(f"{name} is not installed")
    with other_loaders.start(entry, task) as conversation:
        try:
            conversation.answer()
        except ChildError as error:
            pytest.skip(f"{name} is not installed: {error}")
        conversation.ask("prepare")
        conversation.ask("open")
        first = conversation.ask("first")
        del first["seconds"]
        other_loaders.compare(first, other_loaders.sums(task))


def test_loader_that_loses_pixels_is_rejected():
    truth = {"tiles": 4, "image_sum": 1e6, "speed_sum": 500}
    other_loaders.compare(dict(truth, image_sum=1e6 + 0.5), truth)
    for name, value in (("tiles", 3), ("image_sum", 1.001e6), ("speed_sum", 499)):
        with pytest.raises(ChildError, match=name):
            other_loaders.compare(dict(truth, **{name: value}), truth)


def test_loops_of_bytes_send_a_fifth_and_renew_their_section_of_the_page(store, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Loading\n\nText.\n\n## Limits\n\nTwo cores.\n")
    words = ["--store", str(store), "--quick", "--only", "loop", "--repeats", "1", "--threads", "1"]
    for _ in range(2):
        assert benchmark.main([*words, "--seconds", "0.02", "--write-page", str(page)]) == 0
    text = page.read_text()
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# Loading",
        "## Figures",
        "### Loop over 16 whole tiles a batch, with targets on cpu",
        "## Limits",
    ]
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ")]
    sent = {title.strip(): float(cells[-1]) for title, *cells in rows[2:]}
    assert len(sent) == len(QUICK_LOOPS)
    assert all(float(cell.replace(",", "")) > 0 for row in rows[2:] for cell in row[1:])
    ours, floats = sent[LOOPS["ours"]], sent[LOOPS["normalised"]]
    assert floats == pytest.approx(5 * ours, rel=0.01)


def test_every_loop_gives_the_same_images_and_targets(task):
    """Whether they are normalised in workers, on the device, or by the module of this package."""
    ours, *others = (sorted(_epoch(name, task)) for name in LOOPS if name != "torchgeo")
    for theirs in others:
        assert theirs == pytest.approx(ours, rel=1e-5)


def _epoch(name, task):
    """Return the mean of the image and that of the target of every tile."""
    server = LoopServer(name, asdict(task))
    server.open()
    for image, target in server.loader:
        assert image.dtype == target.dtype == torch.float32
        assert target.shape == (len(image), 8, *image.shape[2:])
        for one, its in zip(image, target, strict=True):
            yield float((one.double() + 10).mean()) + 1000 * float(its.double().mean())


def test_storage_of_tiles_is_compared(store, capsys):
    settings = {"batch_size": 4, "crop": 64, "threads": 1, "seconds": 0.01, "repeats": 1}
    result = Result("loaders", {**settings, "quick": True})
    tiles = RamTiles.load(store, split="all", progress=False)
    measure_residency(result, store, tiles)
    for kind in RESIDENCIES:
        assert result[f"residency.{kind}.whole.rate"].median > 0
        assert result[f"residency.{kind}.crops.cpu"].median > 0
    held = [result[f"residency.{kind}.held"].median for kind in ("compressed", "ram")]
    assert held[0] < held[1]
    assert held[1] >= tiles.nbytes / 1e6
    print_report(result, benchmark.tables(result))
    assert 'keep="compressed"' in capsys.readouterr().out


def test_a_missing_store_is_one_line(tmp_path, capsys):
    words = ["--quick", "--store", str(tmp_path / "a.zarr"), "--work", f"{tmp_path}/new"]
    assert benchmark.main(words) == 1
    error = capsys.readouterr().err
    assert error.startswith("Error: ")
    assert "a.zarr" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("options", [("--threads", "0"), ("--seconds", "-1")])
def test_a_wrong_value_is_refused_before_anything_is_measured(options, capsys):
    assert benchmark.main(["--quick", *options]) == 2
    assert options[1].removesuffix(".0") in capsys.readouterr().err
