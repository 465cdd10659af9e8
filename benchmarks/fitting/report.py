"""What a run of `benchmarks.training` measured, as tables and as plots."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import Figure, Result
from benchmarks.fitting.ladder import OVER, WAITS
from benchmarks.fitting.learning import REACH
from benchmarks.fitting.rungs import CEILING, FIT, RUNGS
from benchmarks.plots import COLOURS, draw_panels, draw_rows
from benchmarks.tables import print_figures, print_noted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {rung.name: rung.title for rung in RUNGS} | {CEILING: "convolutions alone"}
MAPPED = {"bare": "bare network, compiled", "none": "one view", "d4": "eight views"}


def print_tables(result: Result) -> None:
    """Print every figure that was measured."""
    size, crop = result.settings["batch_size"], result.settings["crop"]
    print_figures(
        result,
        f"The ladder: ResNet34-UNet, focal + dice, {size} x {crop} x {crop}",
        {title: f"ladder.{name}" for name, title in TITLES.items()},
        {
            "images/s": "rate",
            "ms per step": "step",
            "peak MiB": "peak",
            "images per dollar": "bought",
        },
        head="step",
    )
    print_noted(result, "What training.fit reaches", [f"ladder.{name}" for name in OVER])
    sizes = {name.split(".")[1]: name.rpartition(".")[0] for name in result.named("sizes")}
    print_figures(result, "Batch sizes", sizes, {"images/s": "rate"}, head="windows per batch")
    for part, what in (("parts", "part"), ("kinds", "kind of operator")):
        print_figures(
            result,
            f"Where a step of {FIT.title} goes, by {what}",
            {n.split(".")[2]: n.rpartition(".")[0] for n in result.named(f"step.{part}")},
            {"ms": "time", "share": "share"},
        )
    print_figures(
        result,
        "Mapping new imagery",
        {title: f"predict.{name}" for name, title in MAPPED.items()},
        {
            "network Mpx/s": "network",
            "map Mpx/s": "image",
            "km2/h at 0.3 m": "area",
            "share of bare": "share",
        },
    )
    print_noted(result, "Windows overlap", ["predict.overlap"])
    ranks = {"one process": "ranks.one", "two, through torchrun": "ranks.two"}
    print_figures(result, "Ranks, the same global batch", ranks, {"images/s": "rate"})
    print_noted(result, "Two ranks", ["ranks.over_one", "ranks.difference"])
    waits = {name: f"waiting.{name}" for name in WAITS}
    columns = {"images/s alone": "alone", "beside a busy process": "beside"}
    columns |= {"cpu s per step alone": "alone_cpu", "beside": "beside_cpu"}
    print_figures(result, "How threads wait for work", waits, columns)
    recipes = result.settings.get("city", {"recipes": {}})["recipes"]
    columns = {"road IoU": "road_iou", "bin IoU": "bin_iou", "over prior": "over_prior"}
    columns |= {"mph off": "speed_error", "minutes": "minutes", "to road": "to_road"}
    columns |= {"to bins": "to_bins", "to both": "to_both"}
    rows = {name: f"city.{name}" for name in recipes}
    print_figures(result, "Learning a city, on its validation scenes", rows, columns, head="recipe")
    print_noted(result, "Learning", ["city.prior", *result.named("chip")])


def draw(result: Result, path: Path) -> None:
    """Draw the parts that were measured."""
    m = result.machine
    drawings = [
        ("ladder", _draw_ladder),
        ("step", _draw_step),
        ("sizes", _draw_sizes),
        ("predict", _draw_predict),
        ("city", _draw_city),
    ]
    draw_panels(result, path, f"Training on {m['cores']} cores of {m['processor']}", drawings)


def _there(result: Result, names: dict[str, str]) -> dict[str, Figure]:
    return {text: result[name] for name, text in names.items() if name in result.figures}


def _draw_ladder(result: Result, axis: Axes) -> None:
    colours = {TITLES[CEILING]: COLOURS[7], TITLES[FIT.name]: COLOURS[5]}
    shown = _there(result, {f"ladder.{name}.rate": title for name, title in TITLES.items()})
    draw_rows(axis, shown, [colours.get(title, COLOURS[0]) for title in shown])
    axis.set_title(f"images per second, batches of {result.settings['batch_size']}")


def _draw_step(result: Result, axis: Axes) -> None:
    names = [name for name in result.named("step.kinds") if name.endswith(".time")]
    draw_rows(axis, _there(result, {name: name.split(".")[2] for name in names}))
    axis.set_title("ms per step, by kind of operator")


def _draw_sizes(result: Result, axis: Axes) -> None:
    figures = [result[name] for name in result.named("sizes")]
    sizes = [int(name.split(".")[1]) for name in result.named("sizes")]
    axis.plot(sizes, [f.median for f in figures], "o-", color=COLOURS[0])
    low, high = zip(*(f.spread for f in figures), strict=True)
    axis.fill_between(sizes, low, high, color=COLOURS[0], alpha=0.2, linewidth=0)
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [str(n) for n in sizes])
    axis.set_ylim(bottom=0)
    axis.set_title("images per second by batch size")


def _draw_predict(result: Result, axis: Axes) -> None:
    shown = _there(result, {f"predict.{name}.network": title for name, title in MAPPED.items()})
    draw_rows(axis, shown, [COLOURS[7], COLOURS[0], COLOURS[0]])
    axis.set_title("mapping: Mpx/s through the network")


def _draw_city(result: Result, axis: Axes) -> None:
    for number, (name, curves) in enumerate(result.settings["curves"].items()):
        for seed, curve in enumerate(curves):
            minutes, ious = zip(*((e["minutes"], e["road_iou"]) for e in curve), strict=True)
            label = name if seed == 0 else None
            axis.plot(minutes, ious, color=COLOURS[number % len(COLOURS)], label=label)
    axis.axhline(REACH[0], color="#333333", linestyle="dashed", linewidth=0.8)
    axis.set_ylim(0, 1)
    axis.set_xlabel("minutes")
    axis.legend()
    axis.set_title("validation road IoU, a line per seed")
