"""Draw the pictures of README.md and of the site.

    make demo
    .venv/bin/python docs/front_page.py demo chip55
    make bench-peers BENCH='--only peers --json loaders.json'
    .venv/bin/python docs/front_page.py loaders.json
    .venv/bin/python docs/front_page.py docs/performance/preprocessing.md

The first shows a scene that the demo does not train on, from image to road network; the second the
rate and the memory of loaders, from one run; the third the rate of builds, from the page's table.
"""

import json
import sys
import tempfile
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import rasterio

import geoprep as gp
from benchmarks.loading.other_loaders import ENTRIES
from geoprep.palette import speed_colours

REPO = Path(__file__).resolve().parents[1]


def draw(demo: Path, scene: str, out: Path) -> None:
    """Write the picture of a scene from the folder that ``make demo`` makes.

    Parameters
    ----------
    demo
        Folder with ``moscow.zarr``, ``predictions`` and ``roads.gpkg``.
    scene
        End of the scene's id, such as ``chip55``.
    out
        PNG file to write.
    """
    colours = speed_colours()
    with tempfile.TemporaryDirectory() as folder:
        exported = gp.export_scenes(
            gp.open_store(demo / "moscow.zarr"), scene, Path(folder) / "s.tif"
        )
        with rasterio.open(exported[0]) as image, rasterio.open(exported[1]) as label:
            pixels, speeds = np.moveaxis(image.read(), 0, 2), label.read(1)
    (prediction,) = (demo / "predictions").glob(f"*_{scene}.tif")
    with rasterio.open(prediction) as dataset:
        predicted, bounds, crs = dataset.read(2), dataset.bounds, dataset.crs
    edges = gp.read_network(demo / "roads.gpkg").edges.to_crs(crs)

    mpl.rcParams.update({"font.size": 11, "savefig.dpi": 100})
    figure, axes = plt.subplots(1, 4, figsize=(14, 3.85), layout="constrained")
    extent = (bounds.left, bounds.right, bounds.bottom, bounds.top)
    shown = (
        ("image", pixels),
        ("label: speed of roads", colours[speeds]),
        ("prediction", colours[predicted]),
        (f"road network: {len(edges)} edges", pixels // 2),
    )
    for ax, (title, array) in zip(axes, shown, strict=True):
        ax.imshow(array, extent=extent, aspect="auto", interpolation="antialiased")
        ax.set_title(title, loc="left")
        ax.set_axis_off()
    tints = [colours[0 if np.isnan(mph) else round(mph)] / 255 for mph in edges["speed_mph"]]
    edges.plot(ax=axes[3], color=tints, linewidth=2, aspect=None)
    axes[3].set(xlim=extent[:2], ylim=extent[2:])
    figure.savefig(out)


def draw_loaders(run: Path, out: Path) -> None:
    """Write the chart of loaders of whole tiles: images per second, and memory per worker.

    Parameters
    ----------
    run
        File that ``python -m benchmarks.loaders --json`` wrote.
    out
        PNG file to write.
    """
    figures = json.loads(run.read_text())["figures"]
    loaders = {
        e.title: [
            np.median(figures[f"peers.{e.name}.{what}"]["values"]) for what in ("rate", "memory")
        ]
        for e in ENTRIES
        if f"peers.{e.name}.memory" in figures and not e.crops
    }
    titles = sorted(loaders, key=lambda title: loaders[title][0])
    mpl.rcParams.update({"font.size": 11, "savefig.dpi": 100})
    figure, axes = plt.subplots(1, 2, figsize=(14, 4.2), sharey=True, layout="constrained")
    for column, (ax, what) in enumerate(
        zip(axes, ("images per second", "MB per worker"), strict=True)
    ):
        values = [loaders[title][column] for title in titles]
        tints = ["#0072b2" if title.startswith("ours") else "#9aa5ad" for title in titles]
        bars = ax.barh([title.replace("ours", "geoprep") for title in titles], values, color=tints)
        ax.bar_label(bars, [f"{value:,.0f}" for value in values], padding=4)
        ax.set_title(what, loc="left")
        ax.spines[["top", "right", "bottom"]].set_visible(False)
        ax.set_xticks([])
        ax.margins(x=0.12)
    figure.savefig(out)


def draw_builds(page: Path, out: Path) -> None:
    """Write the chart of builds, decoding alone and the conventional pipeline, scenes per second.

    Parameters
    ----------
    page
        Markdown with a table whose rows end in "scenes/s".
    out
        PNG file to write.
    """
    table = [row.split("|")[1:-1] for row in page.read_text().splitlines() if row.startswith("| ")]
    rows = {cells[0].split(",")[0].strip(): cells[1:] for cells in table if "scenes/s" in cells[0]}
    mpl.rcParams.update({"font.size": 11, "savefig.dpi": 100})
    figure, axes = plt.subplots(1, 3, figsize=(14, 2.2), sharey=True, layout="constrained")
    for column, (ax, title) in enumerate(zip(axes, table[0][1:], strict=True)):
        values = [float(cells[column].split()[0]) for cells in rows.values()]
        tints = ["#0072b2" if name == "build" else "#9aa5ad" for name in rows]
        bars = ax.barh([*rows], values, color=tints)
        ax.bar_label(bars, [f"{value:.1f}" for value in values], padding=4)
        ax.set_title(f"{title.strip()}: scenes per second", loc="left")
        ax.spines[["top", "right", "bottom"]].set_visible(False)
        ax.set(xticks=[], xlim=(0, 115))
    axes[0].invert_yaxis()
    figure.savefig(out)


if __name__ == "__main__":
    if sys.argv[1].endswith(".md"):
        draw_builds(Path(sys.argv[1]), REPO / "docs" / "performance" / "preprocess.png")
    elif len(sys.argv) == 2:
        draw_loaders(Path(sys.argv[1]), REPO / "docs" / "loaders.png")
    else:
        draw(Path(sys.argv[1]), sys.argv[2], REPO / "docs" / "front-page.png")
