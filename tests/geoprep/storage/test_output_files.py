"""Outputs are checked against inputs and files of others; what lies beside them goes with them."""

import os
import sqlite3

import pytest

from geoprep.errors import GeoprepWarning, UsageError
from geoprep.storage.output_files import is_ours, outputs, replaced


def write(path, text="ours"):
    outputs(path)
    with replaced(path) as partial:
        partial.write_text(text)
    return path


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("mine")
    return path


def test_a_file_of_ours_is_replaced_until_it_is_edited(tmp_path):
    path = write(tmp_path / "a.csv")
    write(path, "again")
    assert is_ours(path)
    path.write_text("edited")
    with pytest.raises(UsageError, match=r"a\.csv exists and is no output of geoprep, or"):
        outputs(path)
    assert path.read_text() == "edited"


def test_other_files_folders_and_links_are_refused(tmp_path, mine):
    (tmp_path / "folder").mkdir()
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    (tmp_path / ".geoprep-outputs").write_text('half\n{"file": "mine.csv"}\n[1]\n')
    for path in (mine, tmp_path / "folder", tmp_path / "nowhere"):
        with pytest.raises(UsageError, match=f"{path.name} exists and is no output"):
            outputs(tmp_path / "new.csv", path)
    with pytest.raises(UsageError, match="create it first"):
        outputs(tmp_path / "none" / "a.csv")


def test_an_input_is_refused_under_any_of_its_names(tmp_path):
    path = write(tmp_path / "a.csv")
    (tmp_path / "link.csv").symlink_to(path)
    (tmp_path / "below").symlink_to(tmp_path)
    os.link(path, tmp_path / "hard.csv")
    for name in ("a.csv", "link.csv", "hard.csv", "below/a.csv"):
        with pytest.raises(UsageError, match="would replace an input"):
            outputs(tmp_path / name, inputs=[path, "s3://bucket/b.csv", "\0"])


def test_two_outputs_of_one_name_are_refused(tmp_path):
    (tmp_path / "below").symlink_to(tmp_path)
    for other in ("a.csv", "below/a.csv"):
        with pytest.raises(UsageError, match="would be written twice"):
            outputs(tmp_path / "a.csv", tmp_path / other)


@pytest.mark.parametrize("suffix", [".aux.xml", ".ovr", ".msk"])
def test_what_lies_beside_a_raster_goes_with_it(tmp_path, suffix):
    beside = tmp_path / f"a.tif{suffix}"
    beside.write_text("of a viewer")
    with pytest.raises(UsageError, match=r"a\.tif\S+ exists and would describe a\.tif: move it"):
        outputs(tmp_path / "a.tif")
    beside.unlink()
    path = write(tmp_path / "a.tif")
    beside.write_text("of a viewer")
    with pytest.warns(GeoprepWarning, match=f"{beside.name} describes the file before"):
        outputs(path)
    assert beside.exists(), "until the file is replaced"
    with replaced(path) as partial:
        partial.write_text("new")
    assert not beside.exists()


def test_a_geopackage_is_ours_while_no_row_has_changed(tmp_path):
    path = tmp_path / "a.gpkg"
    outputs(path)
    with replaced(path) as partial, sqlite3.connect(partial) as database:
        database.execute("create table edges (speed real)")
    with sqlite3.connect(path) as viewer:  # as QGIS opens it
        viewer.execute("pragma journal_mode = wal").fetchall()
        viewer.execute("pragma journal_mode = delete").fetchall()
    viewer.close()
    assert is_ours(path)
    with sqlite3.connect(path) as editor:
        editor.execute("pragma journal_mode = wal").fetchall()
        editor.execute("insert into edges values (1)")
        editor.commit()
        with pytest.raises(UsageError, match=r"a\.gpkg-wal has changes of another program: close"):
            outputs(path)
    editor.close()
    assert not is_ours(path)
