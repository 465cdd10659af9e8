"""A synthetic city in SpaceNet's layout: imagery to train on, with its road labels.

``city`` plans it on a ``layout``, ``ground`` has what to draw in a chip (``streets``, ``blocks``),
``image`` renders it, ``files`` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from geoprep.executors.threads import Threads
from geoprep.sources.cities import City
from geoprep.speed import NODATA
from geoprep.storage.local_files import make_folder
from geoprep.synth import files
from geoprep.synth.city import make_plan
from geoprep.synth.image import CLASS_RASTER, PRODUCT_BANDS, Renderer

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
    plan = make_plan(city, scenes, seed, size)
    folder = Path(out) / city.aoi
    files.claim_folder(folder, plan)
    wanted = [*products, *([CLASS_RASTER] if classes else [])]
    contents = [*wanted, *([city.label_folder] if city.labelled else [])]
    for content in contents:
        make_folder(folder / content)
    if classes and not (table := folder / CLASS_RASTER / "classes.yaml").exists():
        files.write_classes(table)
    paths = [{name: folder / name / city.file_name(name, number) for name in contents}
             for number in plan.numbers]  # fmt: skip
    todo = [k for k in range(scenes) if not all(map(Path.exists, paths[k].values()))]
    if not todo:
        return folder
    renderer = Renderer(plan)

    def draw(index: int) -> None:
        missing = {name: path for name, path in paths[index].items() if not path.exists()}
        for product, pixels in renderer.draw(index, [n for n in wanted if n in missing]).items():
            nodata = NODATA if product == CLASS_RASTER else None
            files.write_image(missing[product], pixels, plan.frame.georeference(index), nodata)
        if city.label_folder in missing:
            files.write_json(missing[city.label_folder], files.road_labels(plan, index))

    drawn = Threads(workers).map_unordered(draw, todo)
    for finished, _ in enumerate(drawn, scenes - len(todo) + 1):
        if on_scene is not None:
            on_scene(finished, scenes)
    return folder
