"""Test that imports point one way: to lower layers and to public names, never in a circle."""

import ast
from functools import cache
from pathlib import Path

import pytest
from helpers.exports import public_names

REPO = Path(__file__).resolve().parents[1]
PACKAGES = ("geoprep", "loaders", "training", "benchmarks")

# A package imports packages of lower layers only. Modules without a package are layer 0.
LAYERS = {
    "cli": 9,
    "api": 8,
    "building": 7,
    **dict.fromkeys(("synth", "verify", "views"), 6),
    **dict.fromkeys(("roads", "classes"), 5),
    **dict.fromkeys(("sources", "labels"), 4),
    **dict.fromkeys(("store", "imagery", "cog"), 3),
    "storage": 2,
    "executors": 1,
}

# The same of training, whose modules beside its packages have layers too, from the bottom.
TRAINING = (
    ("setting_texts", "process", "pictures", "commands"),
    ("model",),
    ("data",),
    ("engine",),
    ("settings", "checkpoint"),
    ("runners",),
    ("evaluation", "prediction"),
    ("run",),
    ("cli",),
    ("fit", "export", "predict"),
    ("evaluate",),
    ("model_functions",),
    ("run_functions",),
)


def modules(package):
    """Return every module of a package by its dotted name."""
    found = {}
    for path in sorted((REPO / package).rglob("*.py")):
        parts = path.relative_to(REPO).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = {name: path for package in PACKAGES for name, path in modules(package).items()}


@cache
def imports(path):
    """Return (module, imported name or "") of every import, inside functions too."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.append((whole, "") if whole in MODULES else (node.module, alias.name))
    return found


def ours(path):
    """Return the modules of this repository that a file imports."""
    return {module for module, _ in imports(path) if module.split(".")[0] in PACKAGES}


def package_of(module):
    """Return the package of a module: geoprep.NAME or training.NAME where there is one."""
    parts = module.split(".")
    nested = len(parts) > 1 and (REPO / parts[0] / parts[1] / "__init__.py").exists()
    return ".".join(parts[:2]) if nested and parts[0] in ("geoprep", "training") else parts[0]


def layer(module):
    """Return the layer of a module of geoprep."""
    return LAYERS.get(module.split(".")[1], 0) if "." in module else 0


def test_every_package_of_geoprep_has_a_layer():
    folders = {p.parent.name for p in (REPO / "geoprep").glob("*/__init__.py")}
    assert folders <= set(LAYERS)


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("geoprep.")])
def test_a_package_imports_itself_and_lower_layers(module):
    for other in ours(MODULES[module]):
        assert other.split(".")[0] == "geoprep", f"{module} imports {other}"
        if package_of(other) != package_of(module):
            assert layer(other) < layer(module), f"{module} imports {other}"


def layer_of_training(module):
    """Return the layer of a module of training."""
    name = module.split(".")[1]
    return next(number for number, names in enumerate(TRAINING) if name in names)


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("training.")])
def test_a_part_of_training_imports_itself_and_lower_layers(module):
    for other in ours(MODULES[module]):
        if other.startswith("training.") and other.split(".")[1] != module.split(".")[1]:
            assert layer_of_training(other) < layer_of_training(module), f"imports {other}"


@pytest.mark.parametrize("module", MODULES)
def test_other_packages_import_exported_names(module):
    for other, name in imports(MODULES[module]):
        if other not in MODULES or package_of(other) == package_of(module):
            continue
        package = package_of(other)
        if package in ("geoprep", "training", "benchmarks"):  # a module that is in no package
            continue
        exported = public_names(MODULES[package])
        if not exported:
            continue  # its modules are its exports; `test_no_private_name_is_imported` has the rest
        assert other == package, f"{module} imports {other}, not a public name of {package}"
        if name:
            assert name in exported, f"{package} does not export {name} ({module})"


@pytest.mark.parametrize("module", MODULES)
def test_no_private_name_is_imported(module):
    for other, name in imports(MODULES[module]):
        if other.split(".")[0] in PACKAGES:
            private = [part for part in (*other.split("."), name) if part.startswith("_")]
            assert not [p for p in private if not p.startswith("__")], f"{module}: {other}.{name}"


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("loaders")])
def test_loaders_import_the_store_and_small_modules_only(module):
    allowed = ("loaders", "geoprep.store", "geoprep.speed", "geoprep.errors", "geoprep.cpus")
    for other in ours(MODULES[module]):
        assert {other, package_of(other)} & set(allowed), f"{module} imports {other}"


@pytest.mark.parametrize("package", ["geoprep", "loaders", "training", "benchmarks"])
def test_nothing_imports_in_a_circle(package):
    graph = {m: {o for o in ours(p) if o != m} for m, p in MODULES.items() if m.startswith(package)}
    visited = set()

    def visit(module, above):
        assert module not in above, " -> ".join((*above[above.index(module) :], module))
        if module not in visited:
            for other in sorted(graph.get(module, ())):
                visit(other, (*above, module))
            visited.add(module)

    for module in graph:
        visit(module, ())


def test_nothing_imports_benchmarks():
    for module, path in MODULES.items():
        if not module.startswith("benchmarks"):
            assert not [o for o in ours(path) if o.startswith("benchmarks")], module


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("geoprep", "rasterio zarr torch pandas geopandas xarray matplotlib numba"),
        ("geoprep.cli.commands", "numpy rasterio zarr numba torch geoprep.api"),
        ("geoprep.sources.city_scenes", "rasterio obstore numpy"),
        ("geoprep.roads.tracing.vectorization, geoprep.roads.formats.files", "pandas pyogrio"),
        ("geoprep.views, geoprep.views.sheet", "matplotlib rasterio torch rich pyogrio"),
        ("training", "torch"),
        ("training.prediction.job, training.prediction.screen", "numba zarr scipy.ndimage"),
    ],
)
def test_what_is_imported_loads_no_heavy_library(python, modules, heavy):
    done = python("-c", f"import sys, {modules}; print({set(heavy.split())} & {{*sys.modules}})")
    assert done.stdout.strip() == "set()", done.stderr


def test_the_reader_of_labels_imports_pyogrio_before_threads_use_it(python):
    """Other threads than the first that imports it print GDAL's errors on the terminal."""
    code = "import sys, geoprep.building.plan; print('pyogrio.raw' in sys.modules)"
    done = python("-c", code)
    assert done.stdout.strip() == "True", done.stderr
