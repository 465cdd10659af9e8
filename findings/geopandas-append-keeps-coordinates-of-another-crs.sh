#!/usr/bin/env bash
# geopandas 1.2.0, pyogrio 0.13.0: rows in one CRS can be appended to a file in another; their coordinates stay.
#
# Guess: to_file(mode="a") converts the rows to the CRS of the layer, or refuses them.
# Seen: a point at 39 E, 36 N (EPSG:4326) that is appended to a GeoPackage in UTM zone 37 (EPSG:32637) is stored as 39
# metres east and 36 metres north: 4,000 km from its place, beside the equator. Nothing warns, use_arrow makes no
# difference, and Shapefile, FlatGeobuf and GeoJSON do the same. Scenes of two zones that are collected in one file, one
# after the other, land on top of each other.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    geopandas==1.2.0 pyogrio==0.13.0 shapely==2.2.0 pyproj==3.7.2 pyarrow==26.0.1 numpy==2.4.6 pandas==2.3.3
cd "$folder"
"$folder/venv/bin/python" -W ignore - > "$folder/seen" <<'PYTHON'
import geopandas

place = geopandas.GeoSeries.from_xy([39.0], [36.0], crs="EPSG:4326").to_frame("geometry")
for suffix in ("gpkg", "shp", "fgb", "geojson"):
    for use_arrow in (False, True):
        path = f"{use_arrow}.{suffix}"
        place.to_crs("EPSG:32637").to_file(path)
        place.to_file(path, mode="a", use_arrow=use_arrow)
        points = geopandas.read_file(path)
        kilometres = points.distance(points.geometry.iloc[points.geometry.x.argmax()]).max() / 1000
        print(suffix, use_arrow, points.crs.to_epsg(), f"{kilometres:.0f} km apart")
PYTHON
diff "$folder/seen" - <<'EXPECTED'
gpkg False 32637 4015 km apart
gpkg True 32637 4015 km apart
shp False 32637 4015 km apart
shp True 32637 4015 km apart
fgb False 32637 4015 km apart
fgb True 32637 4015 km apart
geojson False 32637 4015 km apart
geojson True 32637 4015 km apart
EXPECTED
echo "as described"
