"""Road networks from label files, with speeds as the builder of stores infers them."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.crs import middle_of, moved, utm_crs
from geoprep.errors import LabelError
from geoprep.labels.attributes import OTHER_WAYS
from geoprep.labels.label_options import SpeedRule
from geoprep.labels.vector_files import VectorFile
from geoprep.labels.vector_labels import NOT_LOCATED, read_label_table
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
    roads, _, notes = read_ways(path, rule)
    return roads, notes


def read_ways(
    path: str | os.PathLike[str] | VectorFile, rule: SpeedRule | None = None
) -> tuple[RoadGraph, RoadGraph, tuple[str, ...]]:
    """Return the roads of a label file, the other ways that imagery may show, and notes.

    Other ways are paths, cycleways, runways and so on (`OTHER_WAYS`), without speeds.
    """
    source = path if isinstance(path, VectorFile) else Path(path)
    table = read_label_table(source, replace(rule or SpeedRule(), areas="ignore"))
    lost = sum(NOT_LOCATED.intersection(notes) != set() for notes in table.notes)
    if lost:
        raise LabelError(
            f"{table.name}: {counted(lost, 'road')} with coordinates that are missing, not "
            "finite or out of range. Correct or remove them: otherwise, other roads are scored."
        )
    is_line, mph = shapely.get_dimensions(table.lines) == 1, table.mph[table.feature]
    tags = {name: values[table.feature] for name, values in table.tags.items()}
    drivable = is_line & np.isfinite(mph)
    tunnel = np.isin(tags.get("tunnel", np.full(len(mph), None)), ["yes", "T"])
    other = is_line & ~drivable & ~tunnel & np.isin(tags["highway"], [*OTHER_WAYS])
    counts_of_notes = sorted(Counter(note for notes in table.notes for note in notes).items())
    notes = (*table.file_notes, *(f"{counted(n, 'road')}: {note}" for note, n in counts_of_notes))
    if table.ignored_speed_fields:
        fields = ", ".join(table.ignored_speed_fields)
        notes = (*notes, f"speeds of labels inferred, field {fields} ignored (see `speed_from`)")

    def network(chosen: NDArray[np.bool_]) -> RoadGraph:
        lines, speed = table.lines[chosen], mph[chosen]
        if not len(lines):
            return network_of_labels(lines, speed, None)
        target = utm_crs(*middle_of(lines, table.crs))
        to_metres = partial(moved, source=table.crs, target=target)
        own = {name: values[chosen] for name, values in tags.items()}
        return network_of_labels(lines, speed, target, to_metres=to_metres, attributes=own)

    return network(drivable), network(other), notes
