"""Imports point one way: from rooms to lower floors, never sideways, never round in a circle."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
PACKAGES = ("geoprep", "loaders", "training", "benchmarks")

# Rooms on one floor do not know each other; what has no folder stands on the ground.
FLOORS = {
    "cli": 7,
    **dict.fromkeys(("synth", "build", "verify", "views"), 6),
    **dict.fromkeys(("plan", "roads"), 5),
    **dict.fromkeys(("sources", "labels"), 4),
    **dict.fromkeys(("store", "imagery"), 3),
    "storage": 2,
    "executors": 1,
}
HEAVY = ("rasterio", "zarr", "numba", "torch")


def modules(package: str) -> dict[str, Path]:
    """Return every module of a package by its dotted name."""
    found = {}
    for path in sorted((REPO / package).rglob("*.py")):
        parts = path.relative_to(REPO).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = {name: path for package in PACKAGES for name, path in modules(package).items()}


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (module, imported name or "") of every import of ours, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield (whole, "") if whole in MODULES else (node.module or "", alias.name)


def ours(path: Path) -> set[str]:
    """Return the modules of this repository that a file imports."""
    return {module for module, _ in imports(path) if module.split(".")[0] in PACKAGES}


def floor(module: str) -> int:
    parts = module.split(".")
    return FLOORS[parts[1]] if len(parts) > 1 and parts[1] in FLOORS else 0


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in FLOORS else ""


def test_every_folder_of_geoprep_has_a_floor():
    folders = {p.parent.name for p in (REPO / "geoprep").glob("*/__init__.py")}
    assert folders <= set(FLOORS)


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("geoprep.")])
def test_a_room_imports_itself_and_lower_floors(module):
    for other in ours(MODULES[module]):
        assert other.split(".")[0] == "geoprep", f"{module} imports {other}"
        if room(other) != room(module):
            assert floor(other) < floor(module), f"{module} imports {other}"


@pytest.mark.parametrize("module", MODULES)
def test_no_private_name_is_imported(module):
    for other, name in imports(MODULES[module]):
        if other.split(".")[0] in PACKAGES:
            private = [part for part in (*other.split("."), name) if part.startswith("_")]
            assert not [p for p in private if not p.startswith("__")], f"{module}: {other}.{name}"


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("loaders")])
def test_loaders_know_the_store_and_little_else(module):
    allowed = ("geoprep.store", "geoprep.speed", "geoprep.errors")
    for other in ours(MODULES[module]):
        assert other.startswith("loaders") or other in allowed, f"{module} imports {other}"


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("training")])
def test_training_takes_faces_not_inner_modules(module):
    for other in ours(MODULES[module]):
        parts = other.split(".")
        assert parts[0] != "benchmarks", f"{module} imports {other}"
        if parts[0] != "training":
            most = 2 if parts[0] == "geoprep" else 1
            assert len(parts) <= most, f"{module} imports {other}, not the face of its package"


@pytest.mark.parametrize("package", ["geoprep", "loaders", "training", "benchmarks"])
def test_nothing_imports_in_a_circle(package):
    graph = {m: {o for o in ours(p) if o != m} for m, p in MODULES.items() if m.startswith(package)}
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, " -> ".join((*above[above.index(module) :], module))
        if module not in done:
            for other in sorted(graph.get(module, ())):
                visit(other, (*above, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_only_benchmarks_import_benchmarks():
    for module, path in MODULES.items():
        if not module.startswith("benchmarks"):
            assert not [o for o in ours(path) if o.startswith("benchmarks")], module


def test_the_command_line_loads_no_heavy_library():
    code = f"import sys, geoprep.cli; print(sorted(set(sys.modules) & {set(HEAVY)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
