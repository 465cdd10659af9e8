"""The part of the benchmark of roads from images to scored road networks."""

import json

import pytest
from helpers.roads import network

from benchmarks.common import Result
from benchmarks.roads import main
from benchmarks.tracing import end_to_end, reliability
from benchmarks.tracing.lines import measure_lines


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


def test_scores_become_a_reliability_plot(tmp_path):
    some = {"edges": 4, "mean_confidence": 0.75, "exist": 1.0}
    bins = [{"edges": 0, "mean_confidence": None, "exist": None}, some]
    found = {"edges": 4, "expected_calibration_error": 0.25, "bins": bins}
    (tmp_path / "city.json").write_text(json.dumps({"confidence": found}))
    plot = tmp_path / "plot.svg"
    assert reliability.main([str(tmp_path / "city.json"), "--plot", str(plot)]) == 0
    assert "<svg" in plot.read_text()


def test_lines_are_compared_with_the_true_ones():
    """A staircase of 3 by 4 m beside a straight road; the road far away is compared with none."""
    stairs = [(i * 4 + dx, 1.5 + 3 * dy) for i in range(25) for dx, dy in ((0, i % 2), (4, i % 2))]
    result = Result("roads", {})
    truth = network([(-50, 3), (150, 3)])
    measure_lines(result, "stairs", [(truth, network(stairs, [(0, 500), (100, 500)]))])
    figures = {name: one.values[0] for name, one in result.figures.items()}
    assert figures["stairs.excess_length"] == pytest.approx(75, abs=6)  # 7 m for each 4 m
    assert figures["stairs.heading_error"] == pytest.approx(90 * 3 / 7, abs=4)
    assert figures["stairs.distance"] == pytest.approx((4 * 1.5 + 3 * 0.75) / 7, abs=0.1)
    straight = [[(0, 3.5), (100, 3.5)]]
    measure_lines(
        result, "straight", [(truth, network(*straight)), (network(), network(*straight))]
    )
    figures = {name: one.values[0] for name, one in result.figures.items()}
    assert figures["straight.excess_length"] == pytest.approx(0, abs=1e-6)
    assert figures["straight.heading_error"] == pytest.approx(0, abs=1e-6)
    assert figures["straight.distance"] == pytest.approx(0.5)
    assert figures["straight.vertices"] == 20
