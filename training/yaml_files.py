"""Settings as YAML, in files that users write and in those of runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from geoprep.errors import UsageError


def read_yaml(path: str, parameter: str) -> Any:  # noqa: ANN401 - a file may hold anything
    """Return the content of the YAML file that a parameter names."""
    import yaml

    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"`{parameter}` {path} cannot be read: {reason}") from error


def write_settings(path: Path, sections: Iterable[type[Any]], values: Mapping[str, Any]) -> None:
    """Write settings as YAML, by section, in a form that ``--config`` reads."""
    import yaml

    lines = ["# Settings of this run: `--config` takes this file."]
    for section in sections:
        part = {f.name: values[f.name] for f in fields(section) if f.name in values}
        lines += [f"\n# {section.__doc__}", yaml.safe_dump(part, sort_keys=False).rstrip()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
