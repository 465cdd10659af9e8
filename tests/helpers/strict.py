"""Warnings of dependencies that `make test` allows; all others are errors there."""

EXCEPTIONS = (
    # geoprep: its own, which tests look for where they matter.
    "default::geoprep.errors.GeoprepWarning",
    # affine 3 prefers @ for transforms; affine 2, which rasterio still allows, knows only *.
    "ignore:Use `@` matmul:PendingDeprecationWarning",
    # pyogrio: GDAL compares the suffix of a file that is read from memory and has no name.
    "ignore:File /vsimem/pyogrio_.* non conformant file extension:RuntimeWarning",
    # pyogrio, shapely: damaged labels of tests, which geoprep counts or refuses itself.
    "ignore:Non closed ring detected:RuntimeWarning",
    "ignore:Unsupported geometry type detected:RuntimeWarning",
    "ignore:invalid value encountered in from_wkb:RuntimeWarning",
    "ignore:Could not parse column 'speed_mph' as JSON:UserWarning",
    # rasterio: images of tests that are not georeferenced, as they are written.
    "ignore:The given matrix is equal to Affine.identity:rasterio.errors.NotGeoreferencedWarning",
    # rasterio: rasters that threads burn in memory; Python's filters are those of all threads, so
    # that one thread may take away what silences it in another.
    "ignore:Dataset has no geotransform:rasterio.errors.NotGeoreferencedWarning",
    # pyogrio: files of tests without a CRS, as they are written.
    "ignore:'crs' was not provided:UserWarning",
    # torch: its own `torch.utils.mkldnn`, which it imports to compile or fuse.
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning",
    # torch: its compiler reads every attribute of the tensors that it traces.
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
    # torch: its exporter to ONNX calls what torch itself has deprecated.
    r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning",
    # torch: `torch.export.save` writes constants that are parts of one tensor.
    "ignore:No complete tensor found in the group:UserWarning",
    # xarray: a group without consolidated metadata of its own is opened.
    "ignore:Failed to open Zarr store with consolidated metadata:RuntimeWarning",
    # Python: files of writers that tests kill.
    "ignore:unclosed file <_io.BufferedWriter:ResourceWarning",
)
