"""What a raster file states, in one record."""

import os
import zipfile

import pytest
import rasterio
from affine import Affine
from helpers.factory import PLACES, Place, texture, write_image
from PIL import Image
from rasterio.shutil import copy as copy_raster
from rasterio.vrt import WarpedVRT

from geoprep.errors import ImageError
from geoprep.imagery.description import Raster
from geoprep.imagery.headers import describe
from geoprep.storage.addresses import joined
from geoprep.storage.inputs import open_image
from geoprep.storage.versions import file_version

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


@pytest.fixture
def values():
    """Return 40 x 50 pixels, none of them nodata."""
    return texture(40, 50)


def test_bands_have_their_dtype_scale_offset_unit_and_nodata(tmp_path):
    path = write_image(tmp_path / "a.tif", texture(40, 50, 4, dtype="uint16"), PLACES["utm"])
    with rasterio.open(path, "r+") as file:
        file.scales, file.offsets = (1.0, 0.0001, 1.0, 1.0), (0.0, -0.1, 0.0, 0.0)
        file.units, file.nodata = ("", "1", "", ""), 9
        file.set_band_description(2, "nir")
    raster = describe(str(path))
    band = raster.bands[1]
    assert (band.description, band.dtype, band.nodata) == ("nir", "uint16", 9)
    assert (band.scale, band.offset, band.unit, band.mask) == (0.0001, -0.1, "1", "nodata")
    assert raster.bands[0].scale == 1
    assert raster.states_nodata
    assert raster.nodata_of((2, 1)) == [9, 9]
    assert (raster.grid.shape, raster.grid.crs) == ((40, 50), PLACES["utm"].crs)
    assert raster.grid.transform == PLACES["utm"].transform
    assert raster.crs.startswith("PROJCS")
    assert (raster.gcps, raster.has_rpcs) == (0, False)
    assert raster.files == (str(path),)
    assert raster == describe(str(path))


def test_the_files_of_a_vrt_and_a_stack_of_bands(tmp_path, values):
    bands = [write_image(tmp_path / f"{i}.tif", values[..., i : i + 1]) for i in range(2)]
    vrt = tmp_path / "a.vrt"
    with rasterio.open(bands[0]) as file, WarpedVRT(file, width=25, height=20) as half:
        copy_raster(half, vrt, driver="VRT")
    assert describe(str(vrt)).files == (str(vrt), str(bands[0]))
    stack = joined([str(band) for band in bands])
    assert describe(stack).files == (stack,)
    assert describe(stack).default_bands == (1, 2)


def test_an_open_file_is_described_like_its_path_and_a_palette_by_its_colours(tmp_path):
    path = write_image(tmp_path / "a.tif", texture(9, 9, 1))
    with rasterio.open(path, "r+") as file:
        file.write_colormap(1, {1: (9, 8, 7, 255), 2: (1, 2, 3, 255)})
    raster = describe(str(path))
    with open_image(str(path)) as dataset:
        assert Raster.of(dataset) == raster
    assert raster.bands[0].colour == "palette"
    assert raster.colours[:3].tolist() == [[0, 0, 0, 255], [9, 8, 7, 255], [1, 2, 3, 255]]
    assert not raster.states_nodata


def test_bands_are_named_by_description_colour_or_number(tmp_path, values):
    path = write_image(tmp_path / "a.tif", texture(40, 50, 4))
    with rasterio.open(path, "r+") as file:
        file.set_band_description(2, "red edge")
    assert describe(str(path)).band_names == ("band 1", "red edge", "band 3", "band 4")
    rgb = describe(str(write_image(tmp_path / "b.tif", values)))
    assert rgb.band_names == ("red", "green", "blue")


@pytest.mark.parametrize(
    ("place", "says"),
    [
        (Place(None, PLACES["utm"].transform), "no CRS"),
        (Place("EPSG:32637", Affine.identity()), "no georeference"),
        (Place("EPSG:4326", Affine(0.1, 0, 0, 0, -0.1, 400.0)), "nowhere on Earth"),
        (Place('LOCAL_CS["x",UNIT["metre",1]]', Affine(1, 0, 0, 0, -1, 9)), "neither geographic"),
        (Place("EPSG:4978", PLACES["utm"].transform), "neither geographic nor projected"),
    ],
)
def test_images_without_georeference_are_refused_by_name(tmp_path, values, place, says):
    path = write_image(tmp_path / "stray.tif", values, place)
    with pytest.raises(ImageError, match=says) as error:
        describe(str(path)).placed()
    assert "stray.tif" in str(error.value)
    assert "gdal_edit.py" in str(error.value)


WORLD = "1\n0\n0\n-1\n{}.5\n6199999.5\n"
PAM = "<PAMDataset><SRS>EPSG:{}</SRS>{}</PAMDataset>"
STATISTICS = (
    '<PAMRasterBand band="1"><Histograms><HistItem/></Histograms>'
    '<Metadata><MDI key="STATISTICS_MEAN">{}</MDI></Metadata></PAMRasterBand>'
)
SOURCE = (
    "<SimpleSource><SourceFilename>{}</SourceFilename><SourceBand>1</SourceBand></SimpleSource>"
)


def write_vrt(path, source):
    band = f'<VRTRasterBand dataType="Byte" band="1">{SOURCE.format(source)}</VRTRasterBand>'
    path.write_text(f'<VRTDataset rasterXSize="50" rasterYSize="40">{band}</VRTDataset>')


@pytest.fixture
def nested(tmp_path):
    """Return a VRT of a VRT of an image with all sidecars, and a VRT of a member of a zip file."""
    tile = tmp_path / "tile.png"
    Image.fromarray(texture(40, 50, 1)[..., 0]).save(tile)
    write_image(tmp_path / "tile.png.msk", texture(40, 50, 1))
    (tmp_path / "tile.pgw").write_text(WORLD.format(400000))
    (tmp_path / "tile.png.aux.xml").write_text(PAM.format(32637, STATISTICS.format(1)))
    write_vrt(tmp_path / "inner.vrt", tile)
    write_vrt(tmp_path / "outer.vrt", tmp_path / "inner.vrt")
    with zipfile.ZipFile(tmp_path / "tiles.zip", "w") as archive:
        archive.write(tile, "a/tile.png")
    write_vrt(tmp_path / "zipped.vrt", f"/vsizip/{tmp_path}/tiles.zip/a/tile.png")
    return tmp_path


def test_a_raster_has_the_files_of_its_sources_and_theirs(nested):
    def names(file):
        return [os.path.relpath(name, nested) for name in describe(str(nested / file)).files]

    sidecars = ["tile.pgw", "tile.png.aux.xml", "tile.png.msk"]
    outer, inner, tile, *beside = names("outer.vrt")
    assert (outer, inner, tile, sorted(beside)) == ("outer.vrt", "inner.vrt", "tile.png", sidecars)
    assert names("zipped.vrt") == ["zipped.vrt", "tiles.zip"]
    stack = describe(joined([str(nested / "inner.vrt"), str(nested / "zipped.vrt")]))
    assert [name for name in stack.files[1:] if name.endswith(".zip")] == [f"{nested}/tiles.zip"]


@pytest.mark.parametrize(
    ("image", "changed"),
    [
        ("outer.vrt", "tile.png"),
        ("outer.vrt", "inner.vrt"),
        ("outer.vrt", "tile.png.msk"),
        ("tile.png", "tile.pgw"),
        ("tile.png", "tile.png.aux.xml"),
        ("zipped.vrt", "tiles.zip"),
    ],
)
@pytest.mark.parametrize("when", ["later", "same"])
def test_the_version_changes_with_every_file(nested, image, changed, when):
    before, file = describe(str(nested / image)).version(), nested / changed
    assert before == describe(str(nested / image)).version()
    status = file.stat()
    data = bytearray(file.read_bytes())
    if changed.endswith((".pgw", ".xml")):  # the georeference, of the same length
        data = data.replace(b"400000", b"500000").replace(b"32637", b"32638")
    elif changed.endswith(".vrt"):
        data = data.replace(b"/tile.png<", b"/tile.pnG<")
    else:
        data[len(data) // 2] ^= 1
    file.write_bytes(data)
    if when == "same":
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert describe(str(nested / image)).version() != before


def test_statistics_and_overviews_are_not_part_of_an_image(nested):
    before = describe(str(nested / "tile.png"))
    (nested / "tile.png.aux.xml").write_text(PAM.format(32637, "\n" + STATISTICS.format(2)))
    write_image(nested / "tile.png.ovr", texture(20, 25, 1))
    after = describe(str(nested / "tile.png"))
    assert (after.files, after.version()) == (before.files, before.version())


def test_a_large_file_is_sampled_with_its_first_and_last_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr("geoprep.storage.versions._SAMPLE", 8)
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(10_000))
    status, versions = path.stat(), {file_version(str(path))}
    for place in (0, 9_999, 5_056):
        data = bytearray(10_000)
        data[place] = 1
        path.write_bytes(data)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        versions.add(file_version(str(path)))
    assert len(versions) == 4


@pytest.mark.parametrize("size", [(1 << 31) - 1, 1 << 24])
def test_a_size_that_cannot_be_read_is_refused(tmp_path, size):
    write_vrt(tmp_path / "a.vrt", "none.tif")
    text = (tmp_path / "a.vrt").read_text()
    (tmp_path / "a.vrt").write_text(text.replace('XSize="50"', f'XSize="{size}"'))
    with pytest.raises(ImageError, match=rf"a\.vrt claims {size} x 40 pixels"):
        describe(str(tmp_path / "a.vrt"))


def test_an_orientation_that_is_no_number_is_none(tmp_path, values):
    path = write_image(tmp_path / "a.tif", values, Place(None, Affine.identity()))
    with rasterio.open(path, "r+") as file:
        file.update_tags(EXIF_Orientation="turned")
    assert describe(str(path)).grid.shape == (40, 50)
