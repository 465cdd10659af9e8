"""What every source hands on: scenes, and how a person may name one of them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from geoprep.errors import UsageError

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Scene:
    """One image and its road label, by address (see `geoprep.storage.addresses`).

    Attributes
    ----------
    id
        Unique over cities, e.g. ``AOI_7_Moscow_chip12``.
    image, label
        Plain strings, so that a scene travels to other processes; ``label`` is None where no label
        file exists, which is not the same as an empty one.
    """

    id: str
    image: str
    label: str | None


@dataclass(frozen=True, slots=True)
class Found:
    """The scenes of one source, sorted naturally, and what was noticed on the way.

    Attributes
    ----------
    scenes
        At least one.
    origin
        The folder, archive, bucket prefix or patterns they came from.
    product
        Imagery product, None for a person's own images.
    orphan_labels
        Addresses of labels that have no image.
    road_file
        One file of roads for all scenes; their own ``label`` is then None.
    notes
        Lines a person should see, such as folders that could not be read.
    """

    scenes: tuple[Scene, ...]
    origin: str
    product: str | None = None
    orphan_labels: tuple[str, ...] = ()
    road_file: str | None = None
    notes: tuple[str, ...] = ()


def natural_key(text: str) -> tuple[tuple[tuple[int, int, str], ...], str]:
    """Return a sort key under which ``chip2`` comes before ``chip10``; no two texts share one."""
    pieces = re.findall(r"\d+|\D+", text)
    return tuple((0, int(p), "") if p.isdecimal() else (1, 0, p.lower()) for p in pieces), text


def match_scene(ids: Sequence[str], tail: str) -> int:
    """Return the index of the scene named by its id or by the end of it (``chip12``).

    A tail has to begin where a word or a number begins: ``chip1`` is not the end of
    ``AOI_7_Moscow_chip11``, and ``2`` is not the end of ``chip12``.

    Raises
    ------
    UsageError
        No scene, or more than one, is named so; the message gives some.
    """
    names = [str(name) for name in ids]
    if tail in names:
        return names.index(tail)
    hits = [i for i, name in enumerate(names) if tail and _ends_with(name.lower(), tail.lower())]
    if len(hits) == 1:
        return hits[0]
    if hits:
        shown = ", ".join(names[i] for i in hits[:SHOWN])
        more = f" and {len(hits) - SHOWN} more" if len(hits) > SHOWN else ""
        raise UsageError(f"scene {tail!r} could be {shown}{more}: give more of the id.")
    shown = ", ".join(names[:SHOWN])
    raise UsageError(
        f"no scene {tail!r} among {len(names)}"
        + (f", such as {shown}; `geoprep info STORE --scenes` lists them" if shown else "")
    )


def _ends_with(name: str, tail: str) -> bool:
    if not name.endswith(tail) or len(name) == len(tail):
        return name == tail
    before, first = name[-len(tail) - 1], tail[0]
    same_word = before.isalpha() and first.isalpha()
    same_number = before.isdecimal() and first.isdecimal()
    return not (same_word or same_number)
