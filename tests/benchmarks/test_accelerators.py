"""The benchmark of accelerators: a complete run on the CPU, and the page that it writes."""

import json

import pytest
import torch
from helpers.stores import write_store

from benchmarks import accelerators as benchmark
from benchmarks.child import ROOT
from benchmarks.common import Result
from benchmarks.tables import write_page
from training.prediction import predictor

PAGE = ROOT / "docs" / "performance" / "accelerators.md"


@pytest.fixture
def store(tmp_path):
    return write_store(tmp_path / "tiny.zarr")


def small_model(monkeypatch):
    """Let the benchmark train a small model."""
    real = benchmark.Config.from_flat
    given = {"model": "helpers.tiny:normed"}
    monkeypatch.setattr(benchmark.Config, "from_flat", lambda values: real(values | given))
    real_options = benchmark.PredictOptions
    monkeypatch.setattr(benchmark, "PredictOptions", lambda **of: real_options(**of | given))


def test_a_run_on_the_cpu_writes_the_page(store, tmp_path, monkeypatch, capsys):
    small_model(monkeypatch)
    functions = {"ask": lambda target, given: getattr(benchmark, target.split(":")[1])(**given)}
    for name, function in functions.items():
        monkeypatch.setattr(benchmark.child, name, function)  # in this process
    monkeypatch.setattr(predictor, "has_streams", lambda device: True)
    monkeypatch.setattr(benchmark.geoprep, "vectorize", lambda path: None)  # it is noise
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "NUMBA_CACHE_DIR"):
        monkeypatch.setenv(name, "")
    record, written = tmp_path / "a.json", tmp_path / "a.md"
    written.write_text(PAGE.read_text())
    words = [str(store), "--device", "cpu", "--quick", "--work", str(tmp_path / "work")]
    words += ["--json", str(record), "--write-page", str(written)]
    assert benchmark.main(words) == 0
    figures = json.loads(record.read_text())["figures"]
    for figure in ("predict.rate", "predict.first", "network.area"):
        assert figures[figure]["median"] > 0
    assert all(figures[f"step.{name}.rate"]["median"] > 0 for name in benchmark.STEPS)
    text = written.read_text()
    for title in ("8 x 160, no graph", "further images, Mpx/s", "km2/h"):
        assert title in text
    assert "Steps of geoprep fit" in capsys.readouterr().out
    assert not list((tmp_path / "work").iterdir())


def test_without_an_accelerator_one_line_names_the_way_out(monkeypatch, capsys):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert benchmark.main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "finds no accelerator" in line
    assert "--device cpu" in line
    assert benchmark.main(["--device", "xpu"]) == 2
    assert "finds no xpu" in capsys.readouterr().err


def a_result(kind, device, rate):
    machine = {"device": device, "processor": "one", "cores": 2, "memory_gib": 4, "python": "3.11"}
    machine |= {"libraries": {"geoprep": "0.1", "torch": "2.9"}}
    sizes = {"batch_size": 2, "crop": 32, "image": 96, "repeats": 3, "quick": True}
    result = Result("accelerators", sizes | {"device": kind}, machine)
    result.add("step.8 x 160.rate", "images/s", [rate])
    return result


def test_devices_have_sections_beside_each_other_and_a_new_run_replaces_its_own(tmp_path):
    written = tmp_path / "page.md"
    written.write_text(PAGE.read_text())
    for kind, device, rate in (("cuda", "H1", 1234), ("xpu", "B5", 777), ("cuda", "H1", 4321)):
        result = a_result(kind, device, rate)
        tables, mark = benchmark.tables(result), f"{kind}: {device}"
        write_page(written, result, tables, mark, device, benchmark.NOT_RUN)
    text = written.read_text()
    assert text.count("## H1") == text.count("## B5") == 1
    assert "| 8 x 160 | 4,321 |" in text
    assert "1,234" not in text
    before = [line for line in PAGE.read_text().splitlines() if line.startswith("## ")]
    place = before.index("## Not run")
    sections = [*before[:place], "## H1", "## B5", *before[place:]]
    assert [line for line in text.splitlines() if line.startswith("## ")] == sections
