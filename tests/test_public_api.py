"""Test that public names, signatures and keywords are those of ``tests/data/public_api.txt``.

A change of that file is a change of the public API: it needs a line in CHANGELOG.md and, once 0.3.0
is published, a removed name a deprecation. ``make api`` renews the file.
"""

import difflib
import importlib
import inspect
import sys
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
from helpers.exports import public_names

REPO = Path(__file__).resolve().parents[1]
SNAPSHOT = REPO / "tests" / "data" / "public_api.txt"
RENEW = "make api"
PACKAGES = ("geoprep", "loaders", "training")

# Functions and methods that take further keywords, and the record whose fields these are.
KEYWORDS = {
    "training.train": "training.settings.Config",
    "training.load_model": "training.runners.model_options.ModelOptions",
    "training.Model.predict": "training.prediction.predict_options.PredictOptions",
    "training.evaluate_model": "training.evaluate.EvaluateOptions",
    "training.export_model": "training.export.ExportOptions",
}
# Functions whose signature is made of records.
WITH_OPTIONS = (
    *("geoprep.build_zarr", "geoprep.score", "geoprep.vectorize", "geoprep.write_road_table"),
    *("geoprep.synthesize", "geoprep.download", "geoprep.store_info", "geoprep.check_store"),
    *("geoprep.preview", "geoprep.export_scenes", "geoprep.polygonize", "geoprep.compare"),
)
# Special methods that are part of an interface; others serve Python itself.
SPECIAL = ("__call__", "__enter__", "__getitem__", "__iter__", "__len__", "__fspath__")


def public_api():
    """Return one line per public name, method, attribute and keyword."""
    import griffe

    loader = griffe.GriffeLoader(search_paths=[REPO], allow_inspection=False)
    for package in PACKAGES:
        loader.load(package)
    loader.resolve_aliases()
    lines = []
    for module in ("geoprep", "geoprep.errors", "loaders", "training"):
        for name in sorted(public_names(loader.modules_collection[module].filepath)):
            found = loader.modules_collection[f"{module}.{name}"]
            lines += described(f"{module}.{name}", found)
    for function, record in KEYWORDS.items():
        lines += keywords(function, record)
    for function in WITH_OPTIONS:
        lines += declared_keywords(function)
    return lines


def described(path, found):
    """Yield the lines of a class with its members, of a function, or of a value."""
    import griffe

    target = found.final_target if isinstance(found, griffe.Alias) else found
    if isinstance(target, griffe.Function):
        yield f"{path}{parameters(target)} -> {target.returns}"
    elif isinstance(target, griffe.Class):
        bases = f" ({', '.join(str(base) for base in target.bases)})" if target.bases else ""
        yield f"class {path}{parameters(target)}{bases}"
        for name, member in sorted(target.all_members.items()):
            if name in SPECIAL or not name.startswith("_"):
                yield from described(f"{path}.{name}", member)
    elif isinstance(target, griffe.Attribute):
        yield f"{path}{type_or_value(target)}"


def type_or_value(attribute):
    """Return the type of an attribute, or the value of a constant or type alias."""
    owner = attribute.parent
    if attribute.annotation:
        return f": {attribute.annotation}"
    if owner is None or not owner.is_class:
        return f" = {attribute.value}"
    # Attributes that __init__ sets to its parameters have their types; others are inferred.
    given = {one.name: one.annotation for one in owner.parameters}
    return f": {given[str(attribute.value)]}" if str(attribute.value) in given else ""


def parameters(target):
    """Return the parameters of a function or class, without ``self`` and ``cls``."""
    found, starred = [], False
    for one in target.parameters:
        if one.name in ("self", "cls"):
            continue
        kind = one.kind.value if one.kind else ""
        if kind == "keyword-only" and not starred:
            found.append("*")
        starred = starred or kind in ("keyword-only", "variadic positional")
        mark = {"variadic positional": "*", "variadic keyword": "**"}.get(kind, "")
        text = f"{mark}{one.name}" + (f": {one.annotation}" if one.annotation else "")
        found.append(text + (f" = {one.default}" if one.default and not mark else ""))
        if kind == "positional-only":
            found = [part for part in found if part != "/"] + ["/"]
    return f"({', '.join(found)})"


def keywords(function, record):
    """Yield the further keywords of a function: the fields of a record, with their defaults."""
    module, name = record.rsplit(".", 1)
    for one in sorted(fields(getattr(importlib.import_module(module), name)), key=lambda f: f.name):
        if one.default is not MISSING:  # those without a default are parameters of their own
            yield f"{function} keyword {one.name}: {one.type} = {one.default!r}"


def declared_keywords(function):
    """Yield the keywords of a function that only its signature at run time has."""
    package, name = function.split(".")
    found = getattr(importlib.import_module(package), name)
    own = inspect.signature(found.__wrapped__).parameters
    for one in sorted(inspect.signature(found).parameters.values(), key=lambda one: one.name):
        if one.name not in own:
            yield f"{function} keyword {one.name}: {one.annotation} = {one.default!r}"


def test_public_names_are_those_of_the_snapshot():
    pytest.importorskip("griffe")
    before, now = SNAPSHOT.read_text(encoding="utf-8").splitlines(), public_api()
    changed = "\n".join(difflib.unified_diff(before, now, "snapshot", "code", lineterm="", n=0))
    assert not changed, f"the public API has changed; `{RENEW}` renews the snapshot:\n{changed}"


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_marked_as_typed(package):
    assert (REPO / package / "py.typed").is_file()


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_list_their_public_names_once(package):
    names = public_names(REPO / package / "__init__.py")
    assert names
    assert len(set(names)) == len(names)


if __name__ == "__main__":
    sys.path.insert(0, str(REPO))
    SNAPSHOT.write_text("\n".join(public_api()) + "\n", encoding="utf-8")
    print(f"{SNAPSHOT.relative_to(REPO)} is up to date")
