"""Road networks from label files, with speeds as the builder of stores infers them."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import shapely

from geoprep.crs import middle_of, moved, utm_crs
from geoprep.errors import LabelError
from geoprep.labels.label_options import SpeedRule
from geoprep.labels.vector_files import VectorFile
from geoprep.labels.vector_labels import NOT_LOCATED, read_road_table
from geoprep.roads.formats.lines import network_of_labels
from geoprep.roads.network import RoadGraph
from geoprep.texts import counted


def read_labels(
    path: str | os.PathLike[str] | VectorFile, rule: SpeedRule | None = None
) -> tuple[RoadGraph, tuple[str, ...]]:
    """Return the roads of a label file as a network in metres, and notes about the file.

    Lines that are not drivable are left out, and so are areas. Points are one node where their
    coordinates in the file are exactly equal, whatever their heights. Connected components without
    a path of 5 m are left out. Notes such as ``3 roads: lanes missing`` count what was assumed.
    """
    source = path if isinstance(path, VectorFile) else Path(path)
    table = read_road_table(source, replace(rule or SpeedRule(), areas="ignore"))
    lost = sum(NOT_LOCATED.intersection(notes) != set() for notes in table.notes)
    if lost:
        raise LabelError(
            f"{table.name}: {counted(lost, 'road')} with coordinates that are missing, not "
            "finite or out of range. Correct or remove them: otherwise, other roads are scored."
        )
    lines, mph = table.lines, table.mph[table.feature]
    roads = (shapely.get_dimensions(lines) == 1) & np.isfinite(mph)  # no areas; drivable
    lines, mph = lines[roads], mph[roads]
    tags = {name: values[table.feature[roads]] for name, values in table.tags.items()}
    counts_of_notes = sorted(Counter(note for notes in table.notes for note in notes).items())
    notes = (*table.file_notes, *(f"{counted(n, 'road')}: {note}" for note, n in counts_of_notes))
    if table.ignored_speed_fields:
        fields = ", ".join(table.ignored_speed_fields)
        notes = (*notes, f"speeds of labels inferred, field {fields} ignored (see `speed_from`)")
    if not len(lines):
        return network_of_labels(lines, mph, None), notes
    target = utm_crs(*middle_of(lines, table.crs))
    to_metres = partial(moved, source=table.crs, target=target)
    return network_of_labels(lines, mph, target, to_metres=to_metres, attributes=tags), notes
