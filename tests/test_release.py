"""Test that version, name and address are stated once, and that names of 0.1.0 still work."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

import geoprep
from geoprep.cli import cli
from loaders.prep import SpeedTarget
from training import evaluate, fit

REPO = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
CITATION = yaml.safe_load((REPO / "CITATION.cff").read_text())
CHANGES = (REPO / "CHANGELOG.md").read_text()


def test_every_place_states_the_version():
    assert CliRunner().invoke(cli, ["--version"]).output.split()[-1] == geoprep.__version__
    assert CITATION["version"] == geoprep.__version__
    newest = re.findall(r"^## (\d\S*) - (\S+)$", CHANGES, re.M)[0]
    assert newest == (geoprep.__version__, str(CITATION["date-released"]))


def test_name_and_address_have_one_definition():
    source = PROJECT["urls"]["Source"]
    assert CITATION["title"] == PROJECT["name"]
    assert CITATION["repository-code"] == source
    for name in ("Homepage", "Issues", "Changelog"):
        assert PROJECT["urls"][name].startswith(source)
    folders = [REPO / name for name in ("docs", "geoprep", "loaders", "training")]
    texts = [p for f in folders for p in f.rglob("*") if p.suffix in (".md", ".py", ".html")]
    for path in [*REPO.glob("*.md"), *texts]:
        text = path.read_text()
        assert source.removeprefix("https://") not in text, path
        assert f"pip install {PROJECT['name']}`" not in text or "publish" in text, path


@pytest.mark.parametrize(
    ("former", "current"),
    [
        ("vectorize --no-repair", "--no-gap-closing"),
        ("vectorize --certain 0.6", "--high-threshold"),
        ("score --midpoints 50", "--control-point-spacing"),
        ("download --dest here", "--out"),
        ("fit --network resnet34-unet", "--model"),
        ("evaluate --json m.json", "--json > FILE"),
    ],
)
def test_deprecated_options_of_0_1_0_still_work_with_a_warning(former, current, capsys):
    command, option, *_ = former.split()
    if command in cli.commands:
        warned = CliRunner().invoke(cli, [*former.split(), "nowhere.tif"]).stderr
    else:
        {"fit": fit, "evaluate": evaluate}[command].main([*former.split()[1:], "a.pt", "b.zarr"])
        warned = capsys.readouterr().err
    assert re.search(rf"^warning: {option}.* is deprecated, use {current}$", warned, re.M)
    assert "no such option" not in warned.lower()
    assert option in CHANGES
    assert current in CHANGES


def test_the_deprecated_target_of_0_1_0_still_works_with_a_warning():
    with pytest.warns(FutureWarning, match="use targets='bin_index'"):
        SpeedTarget("class")
    assert '(targets="class")` (`bin_index`)' in CHANGES
