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
from geoprep.synth.city.plan import CityPlan, make_plan
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
        write_classes(folder / CLASS_RASTER / "classes.yaml", CLASS_COLOURS)
    todo = [k for k in range(scenes) if not _is_done(folder, plan, k, wanted)]
    if not todo:
        return folder
    drawn = Threads(workers).map_unordered(_Draw(folder, plan, wanted), todo)
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


def _is_done(folder: Path, plan: CityPlan, index: int, products: tuple[str, ...]) -> bool:
    files = scene_files(folder, plan, index, products)
    return all(path.exists() for path in files.values())


class _Draw:
    """Draws and writes scenes; what they share is made once."""

    def __init__(self, folder: Path, plan: CityPlan, products: tuple[str, ...]) -> None:
        self._folder, self._plan, self._products = folder, plan, products
        self._renderer = Renderer(plan)
        self._labels = RoadLabels(plan)

    def __call__(self, index: int) -> None:
        plan = self._plan
        files = scene_files(self._folder, plan, index, self._products)
        for path in files.values():
            make_folder(path.parent)
        for product, pixels in draw_products(self._renderer, index, self._products).items():
            nodata = NODATA if product == CLASS_RASTER else None
            write_image(files[product], pixels, plan.frame.georeference(index), nodata)
        if plan.city.labelled:
            write_json(files[plan.city.label_folder], self._labels.collection(index))
