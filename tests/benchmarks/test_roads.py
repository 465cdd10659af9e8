"""The part of the benchmark of roads from images to scored road networks."""

import json

import pytest

from benchmarks.roads import main
from benchmarks.tracing import end_to_end


@pytest.mark.slow
def test_images_become_scored_networks_by_one_command(tmp_path, monkeypatch, forked):
    """A model trained for a few steps finds no roads, but all figures are recorded."""
    few = (*end_to_end.OPTIONS, "--crops-per-tile", "2", "--pictures", "0")
    monkeypatch.setattr(end_to_end, "OPTIONS", few)
    report = tmp_path / "roads.json"
    assert main(["--end-to-end", "--quick", "--level", "256", "--json", str(report)]) == 0
    recorded = json.loads(report.read_text())["figures"]
    figures = {name: one["values"][0] for name, one in recorded.items()}
    rates = [figures[f"end_to_end.256.{name}"] for name in ("mapping", "vectorizing")]
    whole = figures["end_to_end.256.image_to_graph"]
    assert 0 < whole < min(rates)
    assert 1 / whole == pytest.approx(1 / rates[0] + 1 / rates[1])
    assert 0 <= figures["end_to_end.256.apls"] <= 100
