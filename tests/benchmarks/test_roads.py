"""The part of the benchmark of roads from images to scored road networks."""

import json

import pytest

from benchmarks.roads import main
from benchmarks.tracing import reliability


@pytest.mark.slow
def test_images_become_scored_networks_by_one_command(tmp_path):
    """A model trained for a few steps finds no roads, but all figures are recorded."""
    report = tmp_path / "roads.json"
    assert main(["--end-to-end", "--quick", "--level", "256", "--json", str(report)]) == 0
    recorded = json.loads(report.read_text())["figures"]
    figures = {name: one["values"][0] for name, one in recorded.items()}
    rates = [figures[f"end_to_end.256.{name}"] for name in ("mapping", "vectorizing")]
    whole = figures["end_to_end.256.image_to_graph"]
    assert 0 < whole < min(rates)
    assert 1 / whole == pytest.approx(1 / rates[0] + 1 / rates[1])
    assert 0 <= figures["end_to_end.256.apls"] <= 100


def test_scores_become_a_reliability_plot(tmp_path):
    some = {"edges": 4, "mean_confidence": 0.75, "exist": 1.0}
    bins = [{"edges": 0, "mean_confidence": None, "exist": None}, some]
    found = {"edges": 4, "expected_calibration_error": 0.25, "bins": bins}
    (tmp_path / "city.json").write_text(json.dumps({"confidence": found}))
    plot = tmp_path / "plot.svg"
    assert reliability.main([str(tmp_path / "city.json"), "--plot", str(plot)]) == 0
    assert "<svg" in plot.read_text()
