"""Shared parts of the benchmarks: alternating runs, figures, records and tables."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks import scaling
from benchmarks.child import ChildError, ChildProcess, ask, run
from benchmarks.common import CommonOptions, Figure, Result, command, run_parts, some_of
from benchmarks.tables import Table, print_report


def fail():
    raise ChildError("no such luck")


def test_every_second_round_runs_backwards():
    order = []
    cases = {name: lambda name=name: order.append(name) or len(order) for name in "abc"}
    results = Result("some", {"repeats": 3}).turns(cases)
    assert "".join(order) == "abccbaabc"
    assert results == {"a": [1, 6, 7], "b": [2, 5, 8], "c": [3, 4, 9]}


def test_failing_case_is_left_out_and_others_continue():
    result = Result("some", {"repeats": 2})
    assert result.turns({"a": fail, "b": lambda: 1}) == {"b": [1, 1]}
    assert result.notes == ["a is left out: no such luck"]


def test_failing_command_reports_its_error():
    with pytest.raises(ChildError, match="no such luck"):
        run([sys.executable, "-c", "raise SystemExit('no such luck')"])


def test_allocator_variables_are_removed_for_child_processes(monkeypatch):
    monkeypatch.setenv("MALLOC_MMAP_MAX_", "0")
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    code = "import os; print([k for k in os.environ if 'MALLOC' in k or 'GLIBC' in k])"
    assert run([sys.executable, "-c", code]).strip() == "[]"
    with ChildProcess("builtins:dict", {}) as child:
        assert b"MALLOC_MMAP_MAX_" not in Path(f"/proc/{child.process.pid}/environ").read_bytes()


def test_function_answers_or_reports_its_error():
    assert ask("builtins:dict", {"a": 1}) == {"a": 1}
    with pytest.raises(ChildError, match="TypeError"):
        ask("math:sqrt", {})


@pytest.mark.parametrize(
    ("figure", "met"),
    [
        (Figure("", (0.4, 0.5, 0.9), at_least=0.45), True),
        (Figure("", (0.4, 0.44, 0.9), at_least=0.45), False),
        (Figure("MiB", (1025.0,), at_most=1024), False),
        (Figure("MiB", (3.0,), at_least=1, at_most=4), True),
    ],
)
def test_median_meets_or_misses_its_bounds(figure, met):
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
def test_figures_are_written_with_three_digits(values, text):
    assert str(Figure("", values)) == text


def test_record_has_every_figure_and_the_machine(tmp_path):
    result = Result("some", {"chips": 3})
    result.add("uint8.share", "", [0.4, 0.5], at_least=0.4, note="a share")
    result.write(tmp_path / "new" / "some.json")
    record = json.loads((tmp_path / "new" / "some.json").read_text())
    assert (record["figures"]["uint8.share"]["median"], record["settings"]) == (0.45, {"chips": 3})
    assert record["machine"]["memory_gib"] > 0
    share = record["figures"]["uint8.share"]
    assert (share["values"], share["at_least"], share["note"]) == ([0.4, 0.5], 0.4, "a share")


def test_bounds_are_printed(capsys):
    result = Result("some", {})
    result.add("rate", "chips/s", [1.0], at_least=2)
    result.add("unpromised", "s", [1.0])
    result.notes.append("a note")
    print_report(result, [Table("One", {"rate": "the"}, {"x": "rate"})])
    said = capsys.readouterr().out
    assert "at least 2.00: missed" in said
    assert said.index("Bounds") < said.index("Other figures") < said.index("unpromised")
    assert "One" not in said
    assert "a note" in said


def test_failing_part_keeps_figures_of_others():
    result = Result("some", {})
    parts = {"a": fail, "b": lambda: result.add("b.rate", "", [1.0]), "c": fail}
    run_parts(result, parts, ["a", "b"])
    assert result.notes == ["a failed: no such luck"]
    assert list(result.figures) == ["b.rate"]


def test_the_record_is_written_after_each_part(tmp_path):
    path = tmp_path / "record.json"
    result = Result("some", {"json": path})

    def last():
        assert list(json.loads(path.read_text())["figures"]) == ["a.rate"]

    run_parts(result, {"a": lambda: result.add("a.rate", "", [1.0]), "b": last}, ["a", "b"])


@dataclass(frozen=True, kw_only=True)
class SomeOptions(CommonOptions):
    """Options: of a benchmark with parts."""

    only: tuple[str, ...] | None = some_of(("a", "b"), "Measure these parts")


def test_options_reach_the_benchmark_and_paths_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = []
    main = command(SomeOptions)(lambda options: given.append(options) or 0)
    assert main(["--only", "b,a", "--json", "a.json"]) == main([]) == 0
    assert given[0] == SomeOptions(only=("b", "a"), json=tmp_path / "a.json")
    assert given[1] == SomeOptions()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--only", "a,c"], "--only c is unknown: use some of a, b"),
        (["--repeats", "0"], "--repeats 0: must be at least 1"),
    ],
)
def test_wrong_options_are_one_line(words, error, capsys):
    assert command(SomeOptions)(lambda _: 0)(words) == 2
    assert capsys.readouterr().err == f"Error: {error}\n"


def test_builds_of_many_scenes_are_measured(capsys):
    assert scaling.main(["--scenes", "16", "--shards", "2"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["scenes"], result["shards"], result["tasks"]) == (16, 2, 2)
    assert result["tables_seconds"] > 0
