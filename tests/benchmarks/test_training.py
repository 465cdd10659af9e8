"""The trainer's benchmark: what it times, what it refuses to time, and whole runs of its parts."""

import json
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks import training as benchmark
from benchmarks.child import ChildError, run
from benchmarks.common import Result
from benchmarks.fitting import ladder, learning, mapping, report, runs, worker
from benchmarks.fitting.convolutions import record, replay
from benchmarks.fitting.rungs import BF16, CEILING, FIT, IPEX, KEPT, PLAIN, ROOT, RUNGS
from benchmarks.fitting.stepper import Stepper, feeds
from benchmarks.loading.data import Sizes, synthetic_store
from benchmarks.loading.throughput import close
from geoprep.speed import BIN_TABLE
from geoprep.store import Store
from training.config import Config
from training.fit import COMMAND
from training.module import TrainingError

BATCH, CROP = 2, 32


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    sizes = Sizes(scenes=4, scene_side=128)
    return synthetic_store(tmp_path_factory.mktemp("city"), sizes, 1)


@pytest.fixture
def small(monkeypatch):
    """Steps of a network of two convolutions in place of the ResNet."""

    def build(spec, *, bands, channels):
        return nn.Sequential(
            nn.Conv2d(bands, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, channels, 1)
        )

    monkeypatch.setattr("training.module.build_network", build)


@pytest.fixture
def own_allocator(monkeypatch):
    """Leave the allocator of this process alone."""
    monkeypatch.setattr("benchmarks.fitting.stepper.keep_memory", lambda: "as it is")


def a_result(**settings):
    return Result(
        "training",
        {
            "quick": False,
            "batch_size": BATCH,
            "crop": CROP,
            "seconds": 0,
            "repeats": 2,
            "price": None,
        }
        | settings,
        {"cores": 2, "processor": "one"},
    )


def test_each_rung_of_the_ladder_changes_what_it_says():
    assert RUNGS[: RUNGS.index(FIT) + 1] == (PLAIN, KEPT, BF16, FIT)
    for lower, upper, changed in (
        (PLAIN, KEPT, {"keep_memory"}),
        (KEPT, BF16, {"channels_last", "precision"}),
        (BF16, FIT, {"compile_mode"}),
    ):
        before, after = ({f.name: getattr(r, f.name) for f in fields(r)} for r in (lower, upper))
        differ = {name for name in before if before[name] != after[name]}
        assert differ - {"name", "title"} == changed


def test_the_top_of_the_ladder_is_what_fit_does_by_default():
    config = Config()
    assert (FIT.precision, FIT.compile_mode) == (config.precision, config.compile)
    assert FIT.keep_memory
    assert FIT.channels_last


@pytest.mark.usefixtures("small", "own_allocator")
@pytest.mark.parametrize(("rung", "last"), [(KEPT, False), (BF16, True)])
def test_a_rung_has_the_layout_that_it_says(rung, last, store):
    stepper, seen = Stepper(rung, str(store), CROP, BATCH), []
    network = stepper.run.trainable.network
    network[0].register_forward_hook(lambda m, given, out: seen.append(out))
    batches = iter(stepper.loader())
    pace = stepper.pace(batches, 0, 2)
    close(batches)
    assert pace.steps == len(seen) == 2
    assert seen[0].shape[0] == BATCH
    assert 0 <= pace.waited <= pace.seconds
    layout = torch.channels_last if last else torch.contiguous_format
    assert seen[0].is_contiguous(memory_format=layout)


@pytest.mark.usefixtures("small", "own_allocator")
def test_steps_that_learn_nothing_are_not_timed(store):
    stepper = Stepper(KEPT, str(store), CROP, BATCH)
    with torch.no_grad():
        stepper.run.trainable.network[0].weight.fill_(torch.nan)
    batches = iter(stepper.loader())
    with pytest.raises(TrainingError, match="the loss is not a number"):
        stepper.pace(batches, 0, 1)
    close(batches)


@pytest.mark.usefixtures("small", "own_allocator")
def test_the_bound_is_every_convolution_of_a_step_and_nothing_else(store):
    stepper = Stepper(BF16, str(store), CROP, BATCH)
    batches = iter(stepper.loader())
    batch = next(batches)
    found = record(lambda: stepper.run.stepper([batch]))
    close(batches)
    names = [convolution.call.name() for convolution in found]
    assert names == ["aten::convolution"] * 2 + ["aten::convolution_backward"] * 2
    images = [convolution.given[0] for convolution in found[:2]]
    assert [tuple(image.shape) for image in images] == [
        (BATCH, 3, CROP, CROP),
        (BATCH, 8, CROP, CROP),
    ]
    assert all(image.dtype == torch.bfloat16 for image in images)
    assert all(image.is_contiguous(memory_format=torch.channels_last) for image in images)
    # The image itself needs no gradient, which the backward pass is not charged for.
    masks = [convolution.given[-1] for convolution in found[2:]]
    assert [mask[0] for mask in masks] == [True, False]
    replay(found)


@pytest.mark.usefixtures("small", "own_allocator")
def test_the_parts_of_a_step_are_those_of_the_profile(store, monkeypatch):
    monkeypatch.setattr(worker, "FIT", BF16)
    found = worker.breakdown(str(store), BATCH, CROP)
    assert {"wait for the batch", "network forward", "backward", "optimizer"} <= set(found["parts"])
    assert {"convolutions", "batch norm", "optimizer", "gradient clip", "rest"} <= set(
        found["kinds"]
    )
    assert all(milliseconds > 0 for milliseconds in found["kinds"].values())
    result = a_result()
    monkeypatch.setattr(ladder, "ask", lambda module, task: found)
    ladder.measure_step(result, str(store))
    shares = [result[n].median for n in result.named("step.kinds") if n.endswith(".share")]
    assert sum(shares) == pytest.approx(1)


@pytest.mark.usefixtures("small", "own_allocator")
def test_every_feed_gives_the_same_kind_of_batches(store):
    stepper = Stepper(BF16, str(store), CROP, BATCH)
    with feeds(stepper, [1]) as ways:
        assert list(ways) == ["loader", "threads.1", "workers.0", "workers.1", "cached"]
        for batches in ways.values():
            batch = next(batches)
            assert batch.image.shape == (BATCH, 3, CROP, CROP)
            assert batch.speed.shape == (BATCH, CROP, CROP)
            assert batch.image.dtype == batch.speed.dtype == torch.uint8
        assert next(ways["cached"]) is batch


@pytest.mark.usefixtures("small", "own_allocator")
def test_a_prepared_batch_is_the_one_that_was_given(store):
    stepper = Stepper(BF16, str(store), CROP, BATCH)
    batches = iter(stepper.loader())
    first, second = next(batches), next(batches)
    seen = []
    network = stepper.run.trainable.network
    network.register_forward_pre_hook(lambda m, given: seen.append(given[0].detach().clone()))
    with stepper.prepared(first):
        stepper.run.stepper([first])
        stepper.run.stepper([second])
    stepper.run.stepper([second])
    close(batches)
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])


def test_a_command_that_fails_says_why():
    with pytest.raises(ChildError, match="no such luck"):
        run([sys.executable, "-c", "raise SystemExit('no such luck')"])


def test_allocators_of_the_environment_do_not_reach_a_rung(monkeypatch):
    monkeypatch.setenv("MALLOC_MMAP_MAX_", "0")
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    code = "import os; print([k for k in os.environ if 'MALLOC' in k or 'GLIBC' in k])"
    assert run([sys.executable, "-c", code]).strip() == "[]"


def fake_answers(monkeypatch, rates):
    """Let workers answer at once, with these images per second."""

    def answer(module, task, **how):
        rate = rates[task.get("rung", CEILING)]
        if rate is None:
            raise ChildError("no such luck")
        return {"steps": 1, "seconds": BATCH / rate}

    monkeypatch.setattr(ladder, "ask", answer)


def test_the_ladder_is_judged_by_its_ratios(monkeypatch):
    rates = {rung.name: 5.0 for rung in RUNGS} | {"fit": 12.0, "ipex": 12.2, CEILING: 16.0}
    fake_answers(monkeypatch, rates)
    result = a_result(price=0.5)
    ladder.measure_ladder(result, "a.zarr", RUNGS)
    found = {name: result[f"ladder.{name}"] for name in ("over_fp32", "over_ipex", "share")}
    assert found["over_fp32"].median == pytest.approx(2.4)
    assert found["share"].median == pytest.approx(0.75)
    assert [figure.met for figure in found.values()] == [True, False, False]
    assert result["ladder.fit.bought"].median == pytest.approx(12 * 3600 / 0.5)


def test_a_rung_that_does_not_start_is_left_out_with_a_word(monkeypatch):
    fake_answers(monkeypatch, {"fit": BATCH, "ipex": None, CEILING: 16.0})
    result = a_result()
    ladder.measure_ladder(result, "a.zarr", [FIT, IPEX])
    assert "ladder.ipex.rate" not in result.figures
    assert result["ladder.fit.rate"].median == BATCH
    assert any("no such luck" in note for note in result.notes)


def test_what_is_not_installed_is_left_out_with_a_word(monkeypatch):
    monkeypatch.setattr("benchmarks.fitting.rungs.IPEX_PYTHON", Path("/nowhere"))
    result = a_result()
    assert IPEX not in ladder.chosen_rungs(result)
    assert any("make ipex" in note for note in result.notes)


def test_the_prior_is_one_guess_for_every_road(store):
    opened = Store.open(store)
    tiles = learning._val_histogram(opened)
    bins = np.bincount(BIN_TABLE, weights=tiles, minlength=8)[1:]
    train = np.bincount(BIN_TABLE, weights=opened.histogram_speed, minlength=8)[1:]
    guessed = bins[train.argmax()] / bins.sum()
    assert learning.prior_bin_iou(opened) == pytest.approx(guessed / (bins > 0).sum())


@pytest.fixture
def learnt(monkeypatch):
    """Let commands answer at once, writing what theirs would; return those that were run."""
    asked = []

    def trained(store, out, options):
        asked.append((out.parent.name, tuple(options)))
        if "--fail" in options:
            raise ChildError("no such luck")
        out.mkdir(parents=True)
        (out / "best.pt").touch()
        now = time.time()
        stamps = [time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now + s)) for s in (60, 120)]
        lines = [f"{stamp} epoch {n}/2  loss 0.1" for n, stamp in enumerate(stamps, start=1)]
        (out / "log.txt").write_text("\n".join(["2026-01-01 00:00:00 run", *lines]))
        ious = ("0.3", "0.7") if "--good" in options else ("0.2", "0.4")
        return [{"best_road_iou": i, "bin_iou": i} for i in ious], 150.0

    def judged(command, **variables):
        metrics = {"road_iou": 0.7, "bin_iou": 0.7, "speed_mae_mph": 4.0}
        Path(command[command.index("--json") + 1]).write_text(json.dumps({"metrics": metrics}))
        return ""

    monkeypatch.setattr(learning, "fit", trained)
    monkeypatch.setattr(learning, "run", judged)
    return asked


def test_recipes_learn_in_turns_and_what_is_done_is_not_done_again(store, tmp_path, learnt):
    recipes = {"good": ["--good"], "bad": [], "broken": ["--fail"]}
    for seeds, turns in (
        (1, ["good", "bad", "broken"]),
        (2, ["good", "bad", "broken"] + ["broken"] * 2 + ["bad", "good"]),
    ):
        result = a_result()
        learning.measure_city(
            result, store, tmp_path, recipes=recipes, seeds=seeds, reach=(0.65, 0.3)
        )
        assert [name for name, _ in learnt] == turns
    assert result["city.good.to_both"].values == pytest.approx((2.0, 2.0), abs=0.05)
    assert result["city.good.to_bins"].values == pytest.approx((1.0, 1.0), abs=0.05)
    assert result["city.bad.to_bins"].values == pytest.approx((2.0, 2.0), abs=0.05)
    assert "city.bad.to_road" not in result.figures
    assert any("bad: to_road by 0 of 2 seeds" in note for note in result.notes)
    assert any("no such luck" in note for note in result.notes)
    assert result["city.good.minutes"].median == pytest.approx(2.5)
    # Other options under the same name are another recipe.
    other = a_result()
    learning.measure_city(other, store, tmp_path, recipes={"good": ["--lr", "1"]}, seeds=1)
    assert any("take another name" in note for note in other.notes)


def test_a_recipe_has_a_name_and_options():
    assert learning.parse_recipe("ema=--ema 0.99 --lr=1") == ("ema", ["--ema", "0.99", "--lr=1"])
    assert learning.parse_recipe("plain=") == ("plain", [])
    with pytest.raises(ValueError, match="NAME=OPTIONS"):
        learning.parse_recipe("--ema 0.99")


def test_ways_to_wait_are_measured_alone_and_beside_a_busy_process(monkeypatch):
    asked = []

    def answer(module, task, variables):
        asked.append((tuple(variables.items()), bool(busy)))
        return {"steps": 2, "seconds": 1.0, "cpu_seconds": 3.0}

    class Other:
        def __init__(self, command):
            busy.append(command)

        def kill(self):
            busy.clear()

        def wait(self):
            assert not busy

    busy = []
    monkeypatch.setattr(ladder, "ask", answer)
    monkeypatch.setattr(ladder.subprocess, "Popen", Other)
    result = a_result()
    ladder.measure_waiting(result, "a.zarr")
    passive = (("OMP_WAIT_POLICY", "PASSIVE"),)
    assert asked.count((passive, True)) == asked.count((passive, False)) == 2
    assert len(set(asked)) == 2 * len(ladder.WAITS)
    assert result["waiting.passive.beside"].median == 2 * BATCH
    assert result["waiting.active.alone_cpu"].median == 1.5


def test_the_city_is_learnt_as_the_demo_does(tmp_path):
    made = tmp_path / "Makefile"
    made.write_text(
        "EPOCHS = 3\nSIZE ?= 4\ndemo: x\n"
        "\tgeoprep build-zarr --city moscow --source $(DEMO)/data --tile 64 --out a.zarr\n"
        "\tpython -m training.fit $(DEMO)/moscow.zarr --epochs $(EPOCHS) --batch-size $(SIZE) "
        "--out r\n"
    )
    assert learning.demo_options(makefile=made) == ["--epochs", "3", "--batch-size", "4"]
    assert learning.demo_options(learning.BUILD, made) == ["--tile", "64"]
    made.write_text("demo:\n")
    with pytest.raises(ChildError, match="--recipe"):
        learning.demo_options(makefile=made)


def test_the_demo_of_this_project_trains_with_settings_that_exist():
    Config.from_flat(COMMAND.parse(["store.zarr", *learning.demo_options()]))
    text = (ROOT / "Makefile").read_text()
    assert f"SCENES = {learning.SCENES}\n" in text


def test_losses_of_ranks_are_compared_epoch_by_epoch():
    one = [{"loss": "1.0"}, {"loss": "0.5"}]
    two = [{"loss": "1.01"}, {"loss": "0.45"}]
    assert runs.difference(one, one) == 0
    assert runs.difference(one, two) == pytest.approx(0.1)


def test_mapping_is_judged_by_pixels_put_through_the_network():
    work = {"network_pixels": 4_000_000, "image_pixels": 3_200_000, "seconds": 2.0}
    eight = {**work, "network_pixels": 32_000_000, "seconds": 20.0}
    answer = {"bare": [(10.0, 5.0)], "none": [work], "d4": [eight], "shape": [1, 64, 64]}
    result = a_result()
    mapping.record(result, answer)
    assert result["predict.none.network"].median == pytest.approx(2.0)
    assert result["predict.none.share"].median == pytest.approx(1.0)
    assert result["predict.none.area"].median == pytest.approx(1.6 * 0.09 * 3600)
    assert result["predict.overlap"].median == pytest.approx(0.25)
    assert result["predict.d4.share"].median == pytest.approx(0.8)


@pytest.fixture
def everything():
    """A result with figures of every part."""
    result = a_result()
    curve = [{"minutes": m, "road_iou": 0.1 * m, "bin_iou": 0.05 * m} for m in (1.0, 4.0)]
    result.settings |= {"curves": {"demo": [curve, curve]}, "city": {"recipes": {"demo": []}}}
    rates = {f"ladder.{rung.name}.rate": 5.0 for rung in RUNGS} | {"ladder.convolutions.rate": 9.0}
    rates |= {"sizes.1.rate": 3.0, "sizes.2.rate": 4.0, "step.kinds.convolutions.time": 80.0}
    rates |= {"step.kinds.rest.time": 3.0, "step.parts.backward.time": 60.0}
    rates |= {f"predict.{tta}.network": 2.0 for tta in mapping.VIEWS_ASKED}
    rates |= {"predict.bare.network": 2.2, "predict.overlap": 0.1}
    rates |= {"city.demo.road_iou": 0.6, "city.demo.to_road": 4.0, "city.prior": 0.1}
    rates |= {"waiting.passive.alone": 6.0, "waiting.passive.beside": 3.0}
    rates |= {"ranks.one.rate": 7.0, "ranks.two.rate": 6.5, "chip.road_iou": 0.5}
    for name, rate in rates.items():
        result.add(
            name, "", [rate, rate * 1.1], at_least=0.55 if name == "city.demo.road_iou" else None
        )
    return result


def test_every_part_is_printed_and_drawn(everything, tmp_path, capsys):
    report.print_tables(everything)
    said = capsys.readouterr().out
    for title in ("ladder", "Batch sizes", "Where a step", "wait for", "Mapping", "Ranks", "city"):
        assert title in said
    for rung in RUNGS:
        assert rung.title in said
    report.draw(everything, tmp_path / "t.png")
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_run_records_prints_and_draws_what_it_is_asked_for(store, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "QUICK", replace(benchmark.QUICK, crop=CROP, seconds=0.0))
    monkeypatch.setattr(benchmark, "chosen_rungs", lambda result: [KEPT])
    record, plot = tmp_path / "t.json", tmp_path / "t.png"
    given = [str(store), "--quick", "--repeats", "1", "--work", str(tmp_path), "--price", "0.1"]
    given += ["--only", "ladder", "--json", str(record), "--plot", str(plot)]
    assert benchmark.main(given) == 0
    document = json.loads(record.read_text())
    figures = document["figures"]
    for name in ("ladder.kept.rate", "ladder.kept.bought", "ladder.convolutions.rate"):
        assert figures[name]["median"] > 0
    assert figures["ladder.kept.peak"]["median"] > 50
    assert document["settings"]["ladder"]["convolutions"]["convolutions"] > 60
    assert "The ladder" in capsys.readouterr().out
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.json", "t.png"]
