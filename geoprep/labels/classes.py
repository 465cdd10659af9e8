"""The classes of labels: names, values and colours, from a YAML file or from text."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from geoprep.errors import UsageError
from geoprep.palette import class_colours
from geoprep.speed import NODATA
from geoprep.store.classes import BACKGROUND_NAME, ClassTable
from geoprep.store.schema import MOST_CLASSES
from geoprep.texts import counted, yaml_loader

_HEX: Final = re.compile(r"#[0-9a-fA-F]{6}")
_COMPARISON: Final = re.compile(r"(>=|<=|>|<)\s*(-?\d+(?:\.\d+)?)")
_WHOLE: Final = re.compile(r"[+-]?[0-9]+")
_CHANNELS: Final = 3
_MOST_BYTE: Final = 255
_KEYS: Final = ("name", "value", "values", "color", "colour")
REFUSE: Final = "refuse"
UNLABELLED: Final = "nodata"
NONE: Final = ("none",)
"""`label_nodata` where no pixel is unlabelled: nodata tags and transparency are background."""
_RESERVED: Final = (REFUSE, UNLABELLED)
"""Words of the parameter `other`, which no class may have as its name."""
_MOST_SHOWN: Final = 6
_EXAMPLE: Final = "building, or 'road=#6EC1E4,building=60,16,152,water=3'"
_NAMES_A_FILE: Final = re.compile(r"[/\\]|\.(ya?ml|json)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Classes:
    """The classes of labels, and how values of labels are assigned to them."""

    names: tuple[str, ...]  # in the order of their label bytes
    values: tuple[tuple[str, ...], ...]  # of each class: numbers, #RRGGBB, or values of a field
    colors: tuple[str, ...]  # for display, #RRGGBB
    other: str = REFUSE  # meaning of values that no class has: refuse, nodata or a class
    field: str | None = None  # of vector labels; None: the names of the layers are the values

    @property
    def is_all(self) -> bool:
        """Whether every vector feature is of the only class, unless a layer has its name."""
        single = ClassTable(self.names, self.colors).is_single
        return self.field is None and single and not any(self.values)

    def __post_init__(self) -> None:
        if self.other not in (*_RESERVED, *self.names):
            raise UsageError(
                "other",
                f"{self.other}: expected {REFUSE}, {UNLABELLED} or one of the classes "
                f"{', '.join(self.names)}",
            )

    @property
    def rest(self) -> tuple[int, str]:
        """Label byte and description of values that no class has."""
        if self.other in self.names:
            return self.names.index(self.other), f"class {self.other}"
        return NODATA, UNLABELLED


def refused_values(counts: Mapping[str, int], unit: str) -> str:
    """Return the most frequent of values that no class has, and what to do, for messages."""
    ordered = Counter(counts).most_common()
    listed = ", ".join(f"{text} ({counted(count, unit)})" for text, count in ordered[:_MOST_SHOWN])
    more = f" and {len(ordered) - _MOST_SHOWN} more" if len(ordered) > _MOST_SHOWN else ""
    return (
        f"that no class has: {listed}{more}. Add them to `classes`, or say by `other` that they "
        "are nodata, or which class they are"
    )


def parse_values(text: str | None, option: str) -> tuple[str, ...]:
    """Return the values of a raster in text such as ``255``, ``>127``, ``1,2,5`` or ``#ff0000``."""
    if text is None:
        return ()
    if text.strip().lower() == "none" and option == "label_nodata":
        return NONE
    parts = tuple(part.strip() for part in text.split(","))
    compared = len(parts) == 1 and _COMPARISON.fullmatch(parts[0])
    colours = all(_HEX.fullmatch(part) for part in parts)
    if not compared and not colours and None in map(_float, parts):
        raise UsageError(
            option,
            f"{text}: write a value such as 255, a comparison such as '>127', several "
            "values such as 1,2,5, or a colour such as '#ff0000' or 255,0,0",
        )
    return tuple(part for part in parts if part.lower() != "nan")  # which never has a label


def number_limits(value: str) -> tuple[float, float] | None:
    """Return the lowest and highest number that a value or comparison means; None if it is none.

    Examples
    --------
    >>> number_limits(">=127"), number_limits("3"), number_limits("road")
    ((127.0, inf), (3.0, 3.0), None)
    """
    if match := _COMPARISON.fullmatch(value):
        limit = float(match[2])
        if match[1].startswith(">"):
            return limit if "=" in match[1] else math.nextafter(limit, math.inf), math.inf
        return -math.inf, limit if "=" in match[1] else math.nextafter(limit, -math.inf)
    number = _float(value)
    return None if number is None else (number, number)


def parse_classes(
    source: str | os.PathLike[str] | Mapping[str, Any] | Sequence[Any],
) -> list[dict[str, Any]]:
    """Return the classes as plain values: one ``{"name", "values", "color"}`` per class.

    Beside a single class there is the background: alone it would have every labelled pixel.
    ``source`` is the path of a YAML file, the contents of one, or text such as ``building``,
    ``forest,water`` or ``road=#6EC1E4,building=60,16,152,water=3``.
    """
    place = "`classes`"
    if isinstance(source, os.PathLike):
        source = os.fspath(source)
    if isinstance(source, str):
        text = source.strip()
        if text[:1] in ("[", "{"):
            source = _yaml(text, place)
        elif os.path.isfile(os.path.expanduser(text)) or (  # noqa: PTH111, PTH113 - no error for a long text
            "=" not in text and _NAMES_A_FILE.search(text)
        ):
            place = text
            source = _yaml(_contents(text), text)
        else:
            source = _inline(text)
    classes = [_described(entry, place) for entry in _entries(source, place)]
    if len(classes) == 1 and classes[0]["name"] != BACKGROUND_NAME:
        classes.insert(0, {"name": BACKGROUND_NAME, "values": [], "color": None})
    _check(classes, place)
    spares = class_colours([each["name"] for each in classes])
    for each, spare in zip(classes, spares, strict=True):
        own = _hex(each["values"]) or _hex(each["values"][:1])  # its colour in the label
        each["color"] = each["color"] or own or spare.upper()
    return classes


def as_colour(values: Sequence[str]) -> tuple[int, int, int] | None:
    """Return a colour that is written as three numbers or as ``#RRGGBB``; else None."""
    if len(values) == 1 and _HEX.fullmatch(values[0]):
        red, green, blue = bytes.fromhex(values[0][1:])
        return red, green, blue
    numbers = [number for value in values if (number := _float(value)) is not None]
    if not len(numbers) == len(values) == _CHANNELS:
        return None
    if not all(number.is_integer() and 0 <= number <= _MOST_BYTE for number in numbers):
        return None
    red, green, blue = map(int, numbers)
    return red, green, blue


def _hex(values: Sequence[str]) -> str | None:
    colour = as_colour(values)
    return None if colour is None else "#" + bytes(colour).hex().upper()


def as_number(value: str) -> float | None:
    """Return a finite number from text, exactly if it is whole; None if it is none."""
    number = _float(value)
    if number is None or not math.isfinite(number):
        return None
    return int(value) if _WHOLE.fullmatch(value) else number


def _float(value: str) -> float | None:
    if not value.isascii() or "_" in value:  # digits to Python, text to everybody else
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _contents(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file in UTF-8"
        raise UsageError(
            "classes",
            f"{path}: cannot be read ({reason}). Give a YAML file, or text such as {_EXAMPLE}",
        ) from error


def _yaml(text: str, place: str) -> Any:  # noqa: ANN401 - anything that YAML can hold
    import yaml

    with suppress(ValueError):  # as `classes_text` writes it, which YAML takes long to read
        return json.loads(text)
    try:
        return yaml.load(text, Loader=yaml_loader())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        problem = getattr(error, "problem", None) or "not YAML"
        raise UsageError(
            f"{place}{line}: not readable as YAML ({problem}). Write one class per line, such as "
            "'- {name: road, value: 3, color: \"#6EC1E4\"}'"
        ) from error


def _inline(text: str) -> dict[str, list[str]]:
    """Return name -> values from text such as ``road=#6EC1E4,building=60,16,152`` or ``a,b``."""
    values_of: dict[str, list[str]] = {}
    for part in re.split(r",(?=[^,=]*=)" if "=" in text else ",", text):
        name, equals, value = map(str.strip, part.partition("="))
        values = [text.strip() for text in value.split(",")] if value else []
        bare = "=" not in text or (name == BACKGROUND_NAME and not values_of)
        if not name or not all(values) or not (equals or bare):
            raise UsageError(
                "classes", f"{text}: expected NAME,... or NAME=VALUE,..., such as {_EXAMPLE}"
            )
        if name in values_of:
            raise UsageError("classes", f": class {name} is given twice")
        values_of[name] = values
    return values_of


def _entries(source: Any, place: str) -> list[Any]:  # noqa: ANN401 - anything that YAML can hold
    """Return one mapping per class from a list or a mapping of classes."""
    if isinstance(source, Mapping) and set(source) == {"classes"}:
        source = source["classes"]
    if isinstance(source, Mapping):
        return [
            {"name": name, **value}
            if isinstance(value, Mapping)
            else {"name": name, "value": value}
            for name, value in source.items()
        ]
    if not isinstance(source, Sequence) or isinstance(source, str) or not source:
        raise UsageError(
            f"{place}: expected a list of classes, each with a name and a value or a colour, such "
            "as '- {name: road, value: 3, color: \"#6EC1E4\"}'"
        )
    return list(source)


def _described(entry: Any, place: str) -> dict[str, Any]:  # noqa: ANN401 - anything that YAML can hold
    """Return one class as name, values and colour (None if it has none)."""
    if not isinstance(entry, Mapping) or entry.get("name") in (None, ""):
        raise UsageError(f"{place}: {entry!r:.60} is not a class with a name")
    if isinstance(entry["name"], bool):  # YAML reads a bare `no` or `on` as one
        raise UsageError(f"{place}: write the name of the class {entry!r:.60} in quotes")
    name = str(entry["name"]).strip()
    if unknown := [str(key) for key in entry if key not in _KEYS]:
        raise UsageError(
            f"{place}: class {name} has the unknown key {unknown[0]}; use name, value and color"
        )
    given = [entry[key] for key in ("value", "values") if key in entry]
    values = [text for value in given for text in _texts(value, f"{place}: class {name}")]
    texts = [*_texts(entry.get("color", entry.get("colour")), f"{place}: class {name}")]
    colour = _hex(texts)
    if texts and colour is None:
        raise UsageError(
            f"{place}: class {name} has the colour {', '.join(texts)}; write it as '#6EC1E4', "
            "with quotes, or as three numbers"
        )
    return {"name": name, "values": values, "color": colour}


def _texts(value: Any, place: str) -> Iterator[str]:  # noqa: ANN401 - anything that YAML can hold
    """Yield the values of a class as text: numbers, colours as ``#RRGGBB``, and other text."""
    if value is None:
        return
    if isinstance(value, Sequence) and not isinstance(value, str):
        for part in value:
            if isinstance(part, Sequence) and not isinstance(part, str):
                colour = _hex([text for number in part for text in _texts(number, place)])
                if colour is None:
                    raise UsageError(f"{place}: {part!r:.60} is not a colour of three numbers")
                yield colour
            else:
                yield from _texts(part, place)
    elif isinstance(value, bool | Mapping):
        raise UsageError(f"{place} has the value {value!r:.60}; write it in quotes")
    elif isinstance(value, str) and "," in value:  # as on the command line
        for part in value.split(","):
            yield from _texts(part.strip(), place)
    else:
        yield canonical(value)


def canonical(value: object) -> str:
    """Return a value as text: text as it is, 3 for 3.0, and colours in capitals."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    text = str(value).strip()
    return text.upper() if _HEX.fullmatch(text) else text


def _check(classes: Sequence[Mapping[str, Any]], place: str) -> None:
    names = [each["name"] for each in classes]
    if len(names) > MOST_CLASSES:
        raise UsageError(f"{place}: {len(names)} classes; a label byte holds {MOST_CLASSES}")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{place}: class {name} is given twice")
        if name in _RESERVED:
            raise UsageError(f"{place}: {name} cannot be the name of a class; `other` uses it")
    if names == [BACKGROUND_NAME]:
        raise UsageError(f"{place}: there is only {BACKGROUND_NAME}; add the class to find")
    if BACKGROUND_NAME in names[1:]:
        raise UsageError(f"{place}: {BACKGROUND_NAME} must be the first class")
    owner: dict[str, str] = {}
    for each in classes:
        colour = _hex(each["values"])  # three numbers count as one colour
        for key in each["values"] if colour is None else [colour]:
            if owner.setdefault(key, each["name"]) != each["name"]:
                raise UsageError(
                    f"{place}: classes {owner[key]} and {each['name']} both have {key}. Give each "
                    "value or colour to one class"
                )


def classes_text(classes: Sequence[Mapping[str, Any]]) -> str:
    """Return classes from `parse_classes` as one line of JSON, which `parse_classes` reads."""
    return json.dumps(list(classes), separators=(",", ":"), ensure_ascii=False)
