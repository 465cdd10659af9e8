"""What is silenced while images are read is heard again afterwards."""

import threading
import warnings

import numpy as np
import pytest
import rasterio
from PIL import Image
from rasterio.errors import NotGeoreferencedWarning

import geoprep
from geoprep.quiet import no_georeference_warning


def own_filters():
    """Return the filters of this warning; libraries add others when they are imported."""
    return [one for one in warnings.filters if one[2] is NotGeoreferencedWarning]


def test_a_build_an_export_and_vectorize_leave_the_filters_of_the_caller(tmp_path):
    mask = np.zeros((64, 64), np.uint8)
    mask[30:34] = 255
    Image.fromarray(mask).save(tmp_path / "mask.png")
    before = own_filters()
    store = geoprep.build_zarr(
        images=tmp_path / "mask.png",
        out=tmp_path / "a.zarr",
        pixel_size=1.0,
        nodata="none",
        progress=False,
    )
    geoprep.export_scenes(store, "all", tmp_path / "out")
    geoprep.preview(store, tmp_path / "a.png")
    geoprep.vectorize(tmp_path / "mask.png", kind="mask", pixel_size=1.0)
    assert own_filters() == before


def test_threads_share_one_filter_and_the_last_removes_it(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(np.ones((4, 4), np.uint8)).save(path)
    before = list(warnings.filters)
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with no_georeference_warning():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    with no_georeference_warning():
        thread.start()
        inside.wait()
    assert len(warnings.filters) == len(before) + 1
    warnings.filterwarnings("ignore", "set by this thread meanwhile")
    leave.set()
    thread.join()
    assert list(warnings.filters)[1:] == before
    assert warnings.filters[0][1].pattern == "set by this thread meanwhile"
    with pytest.warns(NotGeoreferencedWarning), rasterio.open(path):
        pass
