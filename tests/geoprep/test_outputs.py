"""Outputs are checked with inputs, and what lies beside them goes with them."""

import os
import sqlite3

import pytest

from geoprep.errors import GeoprepError, UsageError
from geoprep.outputs import check_outputs
from geoprep.storage.output_files import replaced


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("mine")
    return path


def test_a_file_that_exists_is_refused_unless_it_is_overwritten(tmp_path, mine):
    with pytest.raises(UsageError, match=r"mine\.csv exists: use `overwrite` to replace it"):
        check_outputs(tmp_path / "new.csv", mine)
    check_outputs(tmp_path / "new.csv", mine, overwrite=True)
    with pytest.raises(GeoprepError), replaced(mine) as partial:  # noqa: PT012 - as a writer fails
        partial.write_text("half")
        raise GeoprepError
    assert mine.read_text() == "mine"
    with replaced(mine) as partial:
        partial.write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]


def test_folders_and_links_to_nothing_are_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    with pytest.raises(UsageError, match="folder is a folder"):
        check_outputs(tmp_path / "folder", overwrite=True)
    with pytest.raises(UsageError, match="nowhere exists"):
        check_outputs(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="create it first"):
        check_outputs(tmp_path / "none" / "a.csv")


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_input_is_refused_under_any_of_its_names(tmp_path, mine, overwrite):
    (tmp_path / "link.csv").symlink_to(mine)
    (tmp_path / "below").symlink_to(tmp_path)
    os.link(mine, tmp_path / "hard.csv")
    for name in ("mine.csv", "link.csv", "hard.csv", "below/mine.csv"):
        inputs = [str(mine), "s3://bucket/b.csv", "\0", "", None, object()]
        with pytest.raises(UsageError, match="would replace an input"):
            check_outputs(tmp_path / name, inputs=inputs, overwrite=overwrite)


def test_what_belongs_to_an_input_is_refused(tmp_path):
    for name in ("a.shp", "a.dbf", "b.tif", "b.tif.msk"):
        (tmp_path / name).write_bytes(b"mine")
    for given, output in (("a.shp", "a.dbf"), ("b.tif", "b.tif.msk")):
        with pytest.raises(UsageError, match="would replace an input"):
            check_outputs(tmp_path / output, inputs=[tmp_path / given], overwrite=True)


def test_nothing_is_written_into_a_store_that_is_read(tmp_path):
    (tmp_path / "s.zarr" / "64").mkdir(parents=True)
    (tmp_path / "s.zarr" / "zarr.json").write_text("{}")
    with pytest.raises(UsageError, match=r"a\.json is in a store that is an input"):
        check_outputs(tmp_path / "s.zarr" / "64" / "a.json", inputs=[tmp_path / "s.zarr"])


def test_two_outputs_of_one_name_are_refused(tmp_path):
    (tmp_path / "below").symlink_to(tmp_path)
    for other in ("a.csv", "below/a.csv"):
        with pytest.raises(UsageError, match="would be written twice"):
            check_outputs(tmp_path / "a.csv", tmp_path / other)


@pytest.mark.parametrize("suffix", [".aux.xml", ".ovr", ".msk"])
def test_what_lies_beside_a_raster_goes_with_it(tmp_path, suffix):
    path, beside = tmp_path / "a.tif", tmp_path / f"a.tif{suffix}"
    beside.write_text("of a viewer")
    with pytest.raises(UsageError, match=r"a\.tif\S+ exists and would describe a\.tif: use `over"):
        check_outputs(path)
    check_outputs(path, overwrite=True)
    assert beside.exists(), "until the file is replaced"
    with replaced(path) as partial:
        partial.write_text("new")
    assert not beside.exists()


def test_a_geopackage_with_changes_of_another_program_is_refused(tmp_path):
    path = tmp_path / "a.gpkg"
    with sqlite3.connect(path) as editor:  # as QGIS opens it
        editor.execute("pragma journal_mode = wal").fetchall()
        editor.execute("create table edges (speed real)")
        editor.commit()
        with pytest.raises(UsageError, match=r"a\.gpkg-wal has changes of another program: close"):
            check_outputs(path, overwrite=True)
    editor.close()
    check_outputs(path, overwrite=True)
