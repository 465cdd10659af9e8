#!/usr/bin/env bash
# pyshp 3.1.6, pyogrio 0.13.0: after a record that is marked as deleted every shape has its neighbour's attributes.
#
# Guess: shapeRecords leaves out the deleted feature, as GDAL does, or returns it, as the README of pyshp says.
# Seen: four roads, the second marked as deleted, as dBase and desktop programs do it until the file is packed. Records
# leave the deleted one out, shapes do not, and shapeRecords pairs them in order: shape 1 has the attributes of road 2,
# shape 2 those of road 3, shape 3 is missing. iterShapeRecords and __geo_interface__ do the same. With a bbox that
# holds everything the pairs are right, and the deleted shape is there without a record. Nothing warns.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile \
    pyshp==3.1.6 pyogrio==0.13.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import struct
from pathlib import Path

import shapefile
from pyogrio.raw import read

with shapefile.Writer("roads") as writer:
    writer.field("name", "C")
    for number in range(4):
        writer.point(number, 0)
        writer.record(f"road {number}")
table = bytearray(Path("roads.dbf").read_bytes())
length_of_header, length_of_record = struct.unpack("<HH", table[8:12])
table[length_of_header + length_of_record] = ord("*")
Path("roads.dbf").write_bytes(table)


def show(name, pairs):
    print(name, *(f"{x:.0f}: {road}" for x, road in pairs), sep="; ")


with shapefile.Reader("roads") as reader:
    everything = (-1, -1, 9, 9)
    for name, found in (("shapeRecords", reader.shapeRecords()), ("with bbox", reader.shapeRecords(bbox=everything))):
        show(name, ((one.shape.points[0][0], one.record and one.record["name"]) for one in found))
    features = reader.__geo_interface__["features"]
    show("geo_interface", ((one["geometry"]["coordinates"][0], one["properties"]["name"]) for one in features))
_, _, points, (names,) = read("roads.shp")
show("GDAL", ((struct.unpack("<d", point[5:13])[0], name) for point, name in zip(points, names)))
PYTHON
diff "$folder/seen" - <<'EXPECTED'
shapeRecords; 0: road 0; 1: road 2; 2: road 3
with bbox; 0: road 0; 1: None; 2: road 2; 3: road 3
geo_interface; 0: road 0; 1: road 2; 2: road 3
GDAL; 0: road 0; 2: road 2; 3: road 3
EXPECTED
echo "as described"
