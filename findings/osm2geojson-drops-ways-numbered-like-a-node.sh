#!/usr/bin/env bash
# osm2geojson 0.3.2: a way whose number is that of a used node is missing, since numbers are compared without types.
#
# Guess: filter_used_refs, which is on by default, leaves out the nodes of ways and the members of relations alone.
# Seen: in OpenStreetMap nodes, ways and relations are numbered apart. Of the roads 2 and 7 road 2 is gone because
# node 2 is a vertex of some road; so is a relation with the number of one of its own vertices, and a bench, node 9,
# since way 9 is the outline of the relation. With the filter off they are there, beside all bare vertices. Nothing
# warns. Own data that are numbered from one lose features everywhere, real extracts now and then.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    osm2geojson==0.3.2 shapely==2.2.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
from osm2geojson import json2geojson

corners = {1: (0, 0), 2: (1, 0), 3: (1, 1), 4: (0, 1), 5: (2, 0), 9: (5, 5)}
nodes = [{"type": "node", "id": number, "lon": x, "lat": y} for number, (x, y) in corners.items()]
nodes[-1]["tags"] = {"amenity": "bench"}


def show(name, number_of_wood, number_of_outline, numbers_of_roads, **options):
    roads = [
        {"type": "way", "id": number, "nodes": vertices, "tags": {"highway": "primary"}}
        for number, vertices in zip(numbers_of_roads, ([1, 2], [2, 5]))
    ]
    outline = {"type": "way", "id": number_of_outline, "nodes": [1, 2, 3, 4, 1]}
    members = [{"type": "way", "ref": number_of_outline, "role": "outer"}]
    tags = {"type": "multipolygon", "natural": "wood"}
    wood = {"type": "relation", "id": number_of_wood, "members": members, "tags": tags}
    features = json2geojson({"elements": [*nodes, *roads, outline, wood]}, **options)["features"]
    tagged = (feature["properties"] for feature in features if "tags" in feature["properties"])
    print(name, *sorted("{type} {id}".format(**properties) for properties in tagged), sep="; ")


show("numbers of their own", 50, 90, (20, 70))
show("numbers of nodes", 3, 9, (2, 7))
show("numbers of nodes, no filter", 3, 9, (2, 7), filter_used_refs=False)
PYTHON
diff "$folder/seen" - <<'EXPECTED'
numbers of their own; node 9; relation 50; way 20; way 70
numbers of nodes; way 7
numbers of nodes, no filter; node 9; relation 3; way 2; way 7
EXPECTED
echo "as described"
