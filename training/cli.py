"""Command line and YAML file -> `Config`: what is not known is refused, naming the nearest."""

from __future__ import annotations

import difflib
import re
from argparse import ArgumentError
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml
from jsonargparse import ArgumentParser, DefaultHelpFormatter

from geoprep.errors import UsageError
from training.config import Config, sections, setting_names

INTRODUCTION = """\
Train a road and speed network on the tiles of one or more stores.

  python -m training.fit moscow.zarr                        all defaults; the run is in runs/moscow
  python -m training.fit moscow.zarr mumbai.zarr --epochs 60 --out runs/both
  python -m training.fit moscow.zarr --config run.yaml --lr 2e-4      a file, then flags
  python -m training.fit --resume runs/moscow               after Ctrl-C, a kill, a power cut
  python -m training.fit moscow.zarr --stages 325@256:20,650@512:10   train small, finish large
  python -m training.fit moscow.zarr --profile              where does a step go?
  torchrun --nproc-per-node 2 -m training.fit moscow.zarr   several processes, or accelerators
"""
CLOSING = """\
A run's folder holds last.pt and best.pt, log.txt, metrics.csv, config.yaml (which --config takes),
tensorboard/, one picture an epoch in pictures/, and curves.png. Ctrl-C saves and says how to go on.
"""

OF_ONE_START = ("out", "resume", "overwrite", "profile", "quiet")
"""Settings that say nothing about what is learnt."""


@dataclass(frozen=True, slots=True)
class Given:
    """What the user wrote, and where.

    Attributes
    ----------
    values
        Settings by flat name: of the file, and over them of the command line.
    """

    values: dict[str, Any]

    def over(self, base: Mapping[str, Any]) -> Config:
        """Return these settings over others, over the defaults."""
        return Config.from_flat({**base, **self.values})


class _Formatter(DefaultHelpFormatter):
    """Shows defaults, not types, which the metavars tell."""

    def _get_help_string(self, action: Any) -> str:  # noqa: ANN401 - argparse's
        default = getattr(action, "default", None)
        hidden = default is None or default is False or default == "==SUPPRESS=="
        text = action.help or ""
        return text if hidden or not action.option_strings else f"{text} (default: %(default)s)"


def make_parser() -> ArgumentParser:
    """Return the parser of ``training.fit``: one group of options a section of `Config`."""
    parser = ArgumentParser(
        prog="python -m training.fit",
        description=INTRODUCTION,
        epilog=CLOSING,
        formatter_class=_RawFormatter,
        exit_on_error=False,
        usage="%(prog)s STORE ... [--config FILE] [options]",
    )
    parser.add_argument("stores", nargs="*", type=str, metavar="STORE", help="One or more stores.")
    parser.add_argument("--config", type=str, metavar="FILE", help="Settings in YAML; flags win.")
    for _, section in sections():
        title, _, text = (section.__doc__ or "").rstrip(".").partition(": ")
        group = parser.add_argument_group(title, text)
        hints = get_type_hints(section)
        for item in fields(section):
            if item.name != "stores":
                _add(group, item.name, hints[item.name], item.default, item.metadata)
    return parser


class _RawFormatter(_Formatter):
    """Keeps the examples as they are written."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        del width
        return "".join(indent + line for line in text.splitlines(keepends=True))


def _add(group: Any, name: str, kind: Any, default: Any, about: Mapping[str, Any]) -> None:  # noqa: ANN401 - argparse's
    flag = f"--{name.replace('_', '-')}"
    flags = ("--model", "--network") if name == "model" else (flag,)
    if kind is bool:
        group.add_argument(flag, action="store_true", help=about["help"])
        return
    metavar = about["metavar"] or "|".join(_choices(kind))
    group.add_argument(*flags, type=kind, default=default, metavar=metavar, help=about["help"])


def _choices(kind: Any) -> Iterable[str]:  # noqa: ANN401 - a type form
    if get_origin(kind) is Literal:
        return map(str, get_args(kind))
    return [w for part in get_args(kind) for w in _choices(part)] or [
        "none" if kind is type(None) else kind.__name__
    ]


def parse(arguments: Sequence[str]) -> Given:
    """Return what command line and file say.

    Raises
    ------
    UsageError
        A setting is unknown, of the wrong type, or the file cannot be read.
    """
    parser = make_parser()
    _refuse_unknown_flags(parser, arguments)
    words = _nulls(arguments)
    try:
        given = parser.parse_args(words, defaults=False).as_dict()
        path = given.pop("config", None)
        settings = read_file(path) if path else {}
        # The parser wants its positional arguments, here too.
        read = parser.parse_object({"stores": [], **settings}, defaults=False).as_dict()
    except (ArgumentError, TypeError) as error:
        raise UsageError(_plain(str(error))) from error
    for found in (given, read):
        if not found.get("stores"):
            found.pop("stores", None)
    return Given(read | given)


def read_file(path: str) -> dict[str, Any]:
    """Return the settings of a YAML file.

    Raises
    ------
    UsageError
        It cannot be read, or has a setting that does not exist.
    """
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"--config {path} cannot be read: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UsageError(f"--config {path} holds no settings: write lines such as `lr: 2e-4`")
    named = {str(name).replace("-", "_"): value for name, value in values.items()}
    for name in named:
        if name not in setting_names():
            raise UsageError(f"{path}: unknown setting {name!r}{_nearest(name, setting_names())}")
    if isinstance(named.get("stores"), str):
        named["stores"] = [named["stores"]]
    optional = optional_settings()
    return {name: _as_meant(value, name in optional) for name, value in named.items()}


def optional_settings() -> set[str]:
    """Return the settings that may be none, which is ``null`` to YAML and jsonargparse."""
    return {
        name
        for _, section in sections()
        for name, kind in get_type_hints(section).items()
        if type(None) in get_args(kind)
    }


def _nulls(arguments: Sequence[str]) -> list[str]:
    """Return the words with ``none`` as ``null`` where a setting may be none."""
    optional = {f"--{name.replace('_', '-')}" for name in optional_settings()}
    words = list(arguments)
    for i, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in optional and equals and value.lower() == "none":
            words[i] = f"{flag}=null"
        elif i and word.lower() == "none" and words[i - 1] in optional:
            words[i] = "null"
    return words


def _as_meant(value: Any, optional: bool) -> Any:  # noqa: ANN401 - a YAML value
    """Return what a person means: YAML 1.1 takes 2e-4 for a string, and has no none."""
    if not isinstance(value, str):
        return value
    if optional and value.lower() == "none":
        return None
    try:
        return float(value) if "e" in value.lower() else value
    except ValueError:
        return value


def write_file(path: Path, config: Config) -> None:
    """Write every setting as YAML, by section: ``--config`` takes it."""
    lines = ["# Every setting of this run: `python -m training.fit --config` takes this file."]
    flat = config.flat()
    for _, section in sections():
        lines.append(f"\n# {section.__doc__}")
        part = {f.name: flat[f.name] for f in fields(section) if f.name not in OF_ONE_START}
        lines.append(yaml.safe_dump(part, sort_keys=False).rstrip())
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _refuse_unknown_flags(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    known = [flag for action in parser._actions for flag in action.option_strings]
    for word in arguments:
        flag = word.split("=", 1)[0]
        if word.startswith("--") and flag not in known and word != "--":
            raise UsageError(f"unknown option {flag}{_nearest(flag, known)}")


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f": did you mean {near[0]}?" if near else "; --help lists them all"


def _plain(message: str) -> str:
    """Return jsonargparse's message as one line a user can act on."""
    found = re.match(r'Parser key "(\w+)"', message)
    if not found:
        return " ".join(message.split())
    name = found[1]
    given = re.search(r"(?:Given value:|Got value:) (.*)", message)
    metavar = str(next(a.metavar for a in make_parser()._actions if a.dest == name))
    wanted = {"N": "a whole number", "NUMBER": "a number"}.get(metavar, metavar)
    what = f"{given[1]!r} is not" if given else "expected"
    return f"--{name.replace('_', '-')}: {what} {wanted}"
