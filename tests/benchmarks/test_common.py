"""Turns, figures, records, tables and plots: what every benchmark builds on."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.child import ChildError
from benchmarks.common import (
    Figure,
    Result,
    interleave,
    parser,
    ratios,
    run_parts,
)
from benchmarks.plots import draw_bars, draw_panels, draw_rows
from benchmarks.tables import print_figures, print_promises

VALUES = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=9)


def test_every_second_round_runs_backwards():
    order: list[str] = []
    results = interleave(
        {name: lambda name=name: order.append(name) or len(order) for name in "abc"}, 3
    )
    assert "".join(order) == "abccbaabc"
    assert results == {"a": [1, 6, 7], "b": [2, 5, 8], "c": [3, 4, 9]}


def test_announces_what_runs():
    said: list[str] = []
    interleave({"decode": lambda: 1}, 2, said.append)
    assert said == ["round 1 of 2: decode", "round 2 of 2: decode"]


@given(VALUES)
def test_median_lies_within_the_spread(values: list[float]):
    figure = Figure("s", tuple(values))
    low, high = figure.spread
    assert low <= figure.median <= high
    assert figure.met is None
    assert figure.promise == ""


@pytest.mark.parametrize(
    ("figure", "met"),
    [
        (Figure("", (0.4, 0.5, 0.9), at_least=0.45), True),
        (Figure("", (0.4, 0.44, 0.9), at_least=0.45), False),
        (Figure("MiB", (1025.0,), at_most=1024), False),
        (Figure("MiB", (3.0,), at_least=1, at_most=4), True),
    ],
)
def test_the_median_keeps_or_breaks_a_promise(figure: Figure, met: bool):
    assert figure.met is met
    assert ("met" in figure.promise) is met


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((33.04, 36.15, 38.0), "36.1 (33.0-38.0)"),
        ((0.4512,), "0.45"),
        ((0.012345,), "0.0123"),
        ((1352.4,), "1,352"),
        ((0.0, 0.0), "0"),
    ],
)
def test_figures_are_written_with_three_digits(values: tuple[float, ...], text: str):
    assert str(Figure("", values)) == text


def test_ratios_are_taken_round_by_round():
    assert ratios([10.0, 30.0], [20.0, 30.0]) == [0.5, 1.0]
    with pytest.raises(ValueError, match="zip"):
        ratios([1.0], [1.0, 2.0])


def test_record_has_every_figure_and_the_machine(tmp_path: Path):
    result = Result("some", {"chips": 3})
    result.add("uint8.share", "", [0.4, 0.5], at_least=0.4, note="a share")
    result.write(tmp_path / "new" / "some.json")
    record = json.loads((tmp_path / "new" / "some.json").read_text())
    assert record["figures"]["uint8.share"] == {
        "unit": "",
        "median": 0.45,
        "min": 0.4,
        "max": 0.5,
        "values": [0.4, 0.5],
        "at_least": 0.4,
        "at_most": None,
        "met": True,
        "note": "a share",
    }
    assert record["settings"] == {"chips": 3}
    assert record["machine"]["cores"] >= 1
    assert record["machine"]["memory_gib"] > 0
    assert "numpy" in record["machine"]["libraries"]


def test_a_figure_is_recorded_once():
    result = Result("some", {})
    result.add("rate", "chips/s", [1.0])
    with pytest.raises(ValueError, match="rate is measured twice"):
        result.add("rate", "chips/s", [2.0])
    assert result.get("rate") == "1.00"
    assert result.get("other") == "-"


def test_promises_are_printed(capsys: pytest.CaptureFixture[str]):
    result = Result("some", {})
    result.add("rate", "chips/s", [1.0], at_least=2)
    result.add("unpromised", "s", [1.0])
    result.notes.append("a note")
    print_promises(result)
    said = capsys.readouterr().out
    assert "at least 2.00: missed" in said
    assert "unpromised" not in said
    assert "a note" in said


def test_rounds_are_enough_for_a_median_however_quick():
    assert parser("x").parse_args(["--quick"]).repeats == 5
    assert parser("x", repeats=3).parse_args([]).repeats == 3
    assert parser("x").parse_args(["--repeats", "7"]).repeats == 7


def test_rounds_are_at_least_one(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        parser("x").parse_args(["--repeats", "0"])
    assert "not 1 or more" in capsys.readouterr().err


def test_a_quick_look_promises_nothing():
    result = Result("some", {"quick": True})
    assert result.add("rate", "chips/s", [1.0], at_least=2).met is None


def test_a_part_that_fails_leaves_the_others_their_figures():
    def fail() -> None:
        raise ChildError("no such luck")

    result = Result("some", {})
    parts = {"a": fail, "b": lambda: result.add("b.rate", "", [1.0]), "c": fail}
    run_parts(result, parts, ["a", "b"])
    assert result.notes == ["a failed: no such luck"]
    assert list(result.figures) == ["b.rate"]


def test_a_table_has_the_rows_and_columns_that_were_measured(capsys: pytest.CaptureFixture[str]):
    result = Result("some", {})
    result.add("uint8.build.rate", "", [1.0, 2.0, 3.0])
    result.add("uint16.build.rate", "", [4.0, 5.0, 6.0])
    result.add("uint8.build.cpu", "", [7.0, 8.0, 9.0])
    rows = {"8 bits": "uint8.build", "16 bits": "uint16.build", "real": "real.build"}
    columns = {"chips/s": "rate", "cpu ms": "cpu", "MB": "mb"}
    print_figures(result, "Rates", rows, columns, head="chips", medians=["cpu"])
    said = capsys.readouterr().out.split()
    assert {"Rates", "chips", "chips/s", "cpu", "bits", "(1.00-3.00)", "8.00", "-"} <= set(said)
    assert not {"real", "MB", "(7.00-9.00)"} & set(said)
    print_figures(result, "Nothing", {"real": "real.build"}, columns)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_bars_leave_a_gap_for_what_was_not_measured(tmp_path: Path, suffix: str):
    path, heights, widths = tmp_path / f"plot.{suffix}", [], []
    result = Result("some", {})
    figure = result.add("a.rate", "", [1.0, 2.0])

    def bars(result: Result, axis: object) -> None:
        draw_bars(axis, ["a", "b"], {"x": [figure, None]})
        heights.extend(round(bar.get_height(), 1) for bar in axis.patches)

    def rows(result: Result, axis: object) -> None:
        draw_rows(axis, {"first": figure, "second": Figure("", (3.0,))}, ["red", "blue"])
        widths.extend((bar.get_width(), bar.get_facecolor()[:3]) for bar in axis.patches)

    draw_panels(result, path, "title", [("a", bars), ("a", rows), ("b", bars)])
    assert heights == [1.5]
    assert widths == [(3.0, (0, 0, 1)), (1.5, (1, 0, 0))]  # from the bottom up
    assert path.stat().st_size > 1000
