"""GeoJSON files for tests."""

import json


def feature(coordinates, kind="LineString", **properties):
    """Return a feature, a line if nothing else is said."""
    geometry = {"type": kind, "coordinates": coordinates}
    return {"type": "Feature", "properties": properties, "geometry": geometry}


def write_features(path, features, **members):
    """Write a collection of features, with further members such as ``crs``; return its path."""
    document = {"type": "FeatureCollection", "features": list(features), **members}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path
