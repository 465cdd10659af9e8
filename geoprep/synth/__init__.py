"""A synthetic city in SpaceNet's layout: imagery to train on, with its road labels.

``city`` plans it, ``ground`` has the shapes and materials, ``image`` draws them, ``files`` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from geoprep.errors import UsageError
from geoprep.executors import Threads
from geoprep.sources import City
from geoprep.speed import NODATA
from geoprep.storage import make_folder
from geoprep.synth.city.plan import make_plan
from geoprep.synth.files import (
    RoadLabels,
    claim_folder,
    scene_files,
    write_classes,
    write_image,
    write_json,
)
from geoprep.synth.image.products import CLASS_RASTER, PRODUCT_BANDS, draw_products
from geoprep.synth.image.render import CLASS_COLOURS, Renderer

__all__ = ["PRODUCT_BANDS", "synthesise"]


def synthesise(
    out: Path,
    city: City,
    *,
    scenes: int,
    seed: int,
    products: Sequence[str] = ("PS-RGB",),
    size: int = 1300,
    classes: bool = False,
    workers: int = 1,
    on_scene: Callable[[int, int], None] | None = None,
) -> Path:
    """Draw a synthetic city into a folder, in the layout of its SpaceNet area of interest."""
    wanted = _check(products, seed, workers)
    plan = make_plan(city, scenes, seed, size)
    folder = Path(out) / city.aoi
    claim_folder(folder, plan)
    if classes:
        wanted = (*wanted, CLASS_RASTER)
        make_folder(folder / CLASS_RASTER)
        if not (table := folder / CLASS_RASTER / "classes.yaml").exists():
            write_classes(table, CLASS_COLOURS)
    paths = [scene_files(folder, plan, index, wanted) for index in range(scenes)]
    todo = [k for k, files in enumerate(paths) if not all(map(Path.exists, files.values()))]
    if not todo:
        return folder
    renderer, labels = Renderer(plan), RoadLabels(plan)

    def draw(index: int) -> None:
        missing = {name: path for name, path in paths[index].items() if not path.exists()}
        for path in missing.values():
            make_folder(path.parent)
        for product, pixels in draw_products(renderer, index, wanted).items():
            if product in missing:
                nodata = NODATA if product == CLASS_RASTER else None
                write_image(missing[product], pixels, plan.frame.georeference(index), nodata)
        if city.label_folder in missing:
            write_json(missing[city.label_folder], labels.collection(index))

    drawn = Threads(workers).map_unordered(draw, todo)
    for finished, _ in enumerate(drawn, scenes - len(todo) + 1):
        if on_scene is not None:
            on_scene(finished, scenes)
    return folder


def _check(products: Sequence[str], seed: int, workers: int) -> tuple[str, ...]:
    """Return the requested products, each once, in a fixed order."""
    unknown = [name for name in products if name not in PRODUCT_BANDS]
    if unknown or not products:
        raise UsageError(
            f"`product`: cannot draw {', '.join(unknown) or 'no product'}: choose from "
            f"{', '.join(PRODUCT_BANDS)}"
        )
    if seed < 0 or workers < 1:
        raise UsageError(f"seed {seed} and {workers} workers: use a seed of 0 or more, workers 1+")
    return tuple(name for name in PRODUCT_BANDS if name in products)
