"""Validate STAC items of models with the schemas in tests/data/stac."""

import json
from pathlib import Path

from jsonschema import Draft7Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7

from geoprep.specifications import FILE_SCHEMA, MLM_SCHEMA

FOLDER = Path(__file__).parents[1] / "data" / "stac"
EXTENSIONS = "https://stac-extensions.github.io"
CORE = "https://schemas.stacspec.org/v1.1.0/item-spec/json-schema"


def schemas():
    """Return every schema by the address that others refer to it with, see README.md there."""
    found = {}
    for path in FOLDER.glob("*.json"):
        name, _, version = path.stem.partition("-")
        address = f"{EXTENSIONS}/{name}/{version}/schema.json" if version else f"{CORE}/{path.name}"
        if name[0].isupper():
            address = f"https://geojson.org/schema/{path.name}"
        found[MLM_SCHEMA if name == "mlm" else address] = json.loads(path.read_text())
    found[f"{EXTENSIONS}/classification/v1.1.0/schema.json"] = found[
        f"{EXTENSIONS}/classification/v2.0.0/schema.json"
    ]
    return found


def problems(item):
    """Return what the schemas of STAC and of the item's extensions find wrong."""
    known = schemas()
    resources = [(k, Resource(contents=v, specification=DRAFT7)) for k, v in known.items()]
    registry = Registry().with_resources(resources)
    assert item["stac_extensions"] == [MLM_SCHEMA, FILE_SCHEMA]
    return [
        f"{error.json_path}: {error.message[:300]}"
        for address in (f"{CORE}/item.json", *item["stac_extensions"])
        for error in Draft7Validator(known[address], registry=registry).iter_errors(item)
    ]
