"""What a run of `benchmarks.training` measured, as tables and as plots."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import COLOURS, Result, plots, print_table
from benchmarks.fitting.rungs import CEILING, FIT, RUNGS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {rung.name: rung.title for rung in RUNGS} | {CEILING: "convolutions alone"}
FEEDS = {"threads": "BatchLoader, threads", "workers": "DataLoader, workers"}


def print_tables(result: Result) -> None:
    """Print every figure that was measured, a table a part."""
    parts = {
        "ladder": _print_ladder,
        "sizes": _print_sizes,
        "feeds": _print_feeds,
        "step": _print_step,
        "predict": _print_predict,
        "ranks": _print_ranks,
        "city": _print_learning,
        "chip": _print_learning,
    }
    printed: list[Any] = []
    for part, print_part in parts.items():
        if part in measured(result) and print_part not in printed:
            printed.append(print_part)
            print_part(result)


def measured(result: Result) -> set[str]:
    """Return the parts that there are figures of."""
    return {name.partition(".")[0] for name in result.figures}


def rungs_of(result: Result) -> list[str]:
    """Return the rungs that were climbed, from the bottom up, and the bound."""
    return [name for name in TITLES if f"ladder.{name}.rate" in result.figures]


def _print_ladder(result: Result) -> None:
    size, crop = result.settings["batch_size"], result.settings["crop"]
    columns = {"images/s": "rate", "ms a step": "step", "peak MiB": "peak"}
    if any(name.endswith(".bought") for name in result.figures):
        columns["images a dollar"] = "bought"
    rows = [
        [TITLES[name], *(result.get(f"ladder.{name}.{key}") for key in columns.values())]
        for name in rungs_of(result)
    ]
    title = f"The ladder: ResNet34-UNet, focal + dice, {size} x {crop} x {crop}"
    print_table(title, ("step", *columns), rows)
    names = ("over_fp32", "over_plain", "over_fit_fp32", "over_ipex", "share")
    rows = [
        [result[f"ladder.{name}"].note, result.get(f"ladder.{name}")]
        for name in names
        if f"ladder.{name}" in result.figures
    ]
    print_table("What training.fit reaches", ("ratio", ""), rows)


def _print_sizes(result: Result) -> None:
    sizes = result.settings["sizes"]
    rows = [["images/s", *(result.get(f"sizes.{n}.rate") for n in sizes)]]
    print_table("Batch sizes", ("", *map(str, sizes)), rows)


def _print_feeds(result: Result) -> None:
    rows = [
        [_feed(name), result.get(f"feeds.{name}.rate"), result.get(f"feeds.{name}.waited")]
        for name in result.settings["feeds"]
    ]
    print_table("Feeding the step", ("batches from", "images/s", "share waited"), rows)


def _feed(name: str) -> str:
    kind, _, count = name.partition(".")
    return f"{FEEDS[kind]}: {count}" if count else "one batch, over and over"


def _print_step(result: Result) -> None:
    kinds = result.settings["step"]
    rows = [[kind, result.get(f"step.{kind}"), result.get(f"step.{kind}.share")] for kind in kinds]
    print_table(f"Where a step of {TITLES[FIT.name]} goes", ("", "ms", "share"), rows)


def _print_predict(result: Result) -> None:
    rows = [
        [
            {"none": "one view", "d4": "eight views"}[tta],
            *(result.get(f"predict.{tta}.{key}") for key in ("network", "image", "area", "share")),
        ]
        for tta in ("none", "d4")
    ]
    rows.append(["bare network, compiled", result.get("predict.bare.rate"), "", "", ""])
    columns = ("network Mpx/s", "map Mpx/s", "km2/h at 0.3 m", "share of bare")
    print_table("Mapping new imagery", ("", *columns), rows)
    overlap = result["predict.overlap"].median
    result.notes.append(f"overlap of windows: {overlap:.1%} more pixels through the network")


def _print_ranks(result: Result) -> None:
    rows = [
        ["one process", result.get("ranks.one.rate"), _losses(result, "one")],
        ["two, through torchrun", result.get("ranks.two.rate"), _losses(result, "two")],
    ]
    print_table("Ranks, the same global batch", ("", "images/s", "loss by epoch"), rows)


def _losses(result: Result, name: str) -> str:
    return " ".join(f"{loss:.4f}" for loss in result.settings[f"ranks.{name}.loss"])


def _print_learning(result: Result) -> None:
    names = [n for n in result.figures if n.partition(".")[0] in ("city", "chip")]
    rows = [[n, f"{result.get(n)} {result[n].unit}", result[n].note] for n in names]
    print_table("Learning, with the trainer's defaults", ("", "median (range)", ""), rows)


def draw(result: Result, path: Path) -> None:
    """Draw the parts that were measured."""
    drawings = {
        "ladder": _draw_ladder,
        "step": _draw_step,
        "sizes": _draw_sizes,
        "predict": _draw_predict,
        "feeds": _draw_feeds,
        "city": _draw_city,
    }
    shown = [drawing for part, drawing in drawings.items() if part in measured(result)]
    m = result.machine
    title = f"Training on {m['cores']} cores of {m['processor']}"
    with plots(path, -(-len(shown) // 2), 2, title) as axes:
        for axis, drawing in zip(axes, shown, strict=False):
            drawing(result, axis)
        for axis in axes[len(shown) :]:
            axis.set_axis_off()


def _draw_ladder(result: Result, axis: Axes) -> None:
    names = rungs_of(result)[::-1]
    colours = {CEILING: COLOURS[7], FIT.name: COLOURS[5]}
    figures = [result[f"ladder.{name}.rate"] for name in names]
    _bars(
        axis,
        [TITLES[name] for name in names],
        [f.median for f in figures],
        [colours.get(name, COLOURS[0]) for name in names],
        [f.spread[1] for f in figures],
    )
    spans = [(f.median - f.spread[0], f.spread[1] - f.median) for f in figures]
    axis.errorbar(
        [f.median for f in figures],
        range(len(names)),
        xerr=list(zip(*spans, strict=True)),
        fmt="none",
        ecolor="#333333",
        elinewidth=0.8,
    )
    axis.set_title("images a second, a batch of " + str(result.settings["batch_size"]))


def _bars(
    axis: Axes,
    labels: list[str],
    values: list[float],
    colours: list[str],
    ends: list[float] | None = None,
) -> None:
    """Draw bars with their values; right of `ends`, where whiskers reach beyond the bars."""
    axis.barh(labels, values, color=colours, height=0.7)
    for at, (value, end) in enumerate(zip(values, ends or values, strict=True)):
        text = f"{value:.0f}" if value >= 100 else f"{value:.3g}"
        axis.annotate(text, (end, at), (4, 0), textcoords="offset points", va="center", fontsize=7)
    axis.tick_params(axis="y", labelsize=7)
    axis.set_xlim(right=1.15 * max(values))
    axis.grid(axis="y", visible=False)


def _draw_step(result: Result, axis: Axes) -> None:
    kinds = result.settings["step"][::-1]
    _bars(axis, kinds, [result[f"step.{kind}"].median for kind in kinds], [COLOURS[0]])
    axis.set_title("ms of a step, by kind of operation")


def _draw_sizes(result: Result, axis: Axes) -> None:
    sizes = result.settings["sizes"]
    figures = [result[f"sizes.{n}.rate"] for n in sizes]
    axis.plot(sizes, [f.median for f in figures], "o-", color=COLOURS[0])
    low, high = zip(*(f.spread for f in figures), strict=True)
    axis.fill_between(sizes, low, high, color=COLOURS[0], alpha=0.2, linewidth=0)
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [str(n) for n in sizes])
    axis.set_ylim(bottom=0)
    axis.set_title("images a second by batch size")


def _draw_feeds(result: Result, axis: Axes) -> None:
    names = result.settings["feeds"][::-1]
    values = [result[f"feeds.{name}.rate"].median for name in names]
    _bars(axis, [_feed(name) for name in names], values, [COLOURS[0]])
    axis.set_title("images a second by what feeds the step")


def _draw_predict(result: Result, axis: Axes) -> None:
    labels = {"bare": "bare network", "none": "one view", "d4": "eight views"}
    keys = ["predict.d4.network", "predict.none.network", "predict.bare.rate"]
    _bars(
        axis,
        [labels[key.split(".")[1]] for key in keys],
        [result[key].median for key in keys],
        [COLOURS[0], COLOURS[0], COLOURS[7]],
    )
    axis.set_title("mapping: Mpx/s through the network")


def _draw_city(result: Result, axis: Axes) -> None:
    for seed, curve in enumerate(result.settings["curves"]):
        axis.plot(range(1, len(curve) + 1), curve, color=COLOURS[seed % len(COLOURS)])
    goal = result["city.road_iou"].at_least
    if goal is not None:
        axis.axhline(goal, color="#333333", linestyle="dashed", linewidth=0.8)
    axis.set_ylim(0, 1)
    axis.locator_params(axis="x", integer=True)
    axis.set_xlabel("epoch")
    axis.set_title("validation road IoU, a line a seed")
