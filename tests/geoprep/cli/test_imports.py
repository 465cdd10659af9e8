"""Test that commands import libraries without the optional ones that these look for."""

CODE = """
import sys
from geoprep.cli.imports import import_quickly
import_quickly("rasterio", "pyogrio", "zarr")
names = ("boto3", "fsspec", "pandas", "geopandas", "pyarrow")
print([name for name in names if name in sys.modules])
import fsspec, geopandas, shapely
frame = geopandas.GeoDataFrame({"a": [1]}, geometry=[shapely.Point(1, 2)], crs=4326)
frame.to_file(sys.argv[1])
print(geopandas.read_file(sys.argv[1]).geometry[0])
"""


def test_quick_imports_load_no_pandas_and_leave_geopandas_usable(tmp_path, python):
    done = python("-c", CODE, tmp_path / "points.gpkg")
    assert done.stdout.splitlines() == ["[]", "POINT (1 2)"], done.stderr
