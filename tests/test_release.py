"""Test that version, name and address are stated once."""

import re
import tomllib
from pathlib import Path

import yaml
from click.testing import CliRunner

import geoprep
from geoprep.cli.commands import cli

REPO = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
CITATION = yaml.safe_load((REPO / "CITATION.cff").read_text())
CHANGES = (REPO / "CHANGELOG.md").read_text()


def test_every_place_states_the_version():
    assert CliRunner().invoke(cli, ["--version"]).output.split()[-1] == geoprep.__version__
    assert CITATION["version"] == geoprep.__version__
    newest = re.findall(r"^## (\d\S*) - (\S+)$", CHANGES, re.M)[0]
    version, developed, _ = geoprep.__version__.partition(".dev")
    date = "unreleased" if developed else str(CITATION["date-released"])
    assert newest == (version, date)
    assert ("date-released" in CITATION) == (not developed)


def test_name_and_address_have_one_definition():
    source = PROJECT["urls"]["Source"]
    assert CITATION["title"] == PROJECT["name"]
    assert CITATION["repository-code"] == source
    for name in ("Homepage", "Issues", "Changelog"):
        assert PROJECT["urls"][name].startswith(source)
    folders = [REPO / name for name in ("docs", "geoprep", "loaders", "training")]
    texts = [p for f in folders for p in f.rglob("*") if p.suffix in (".md", ".py", ".html")]
    pasted = [REPO / "README.md", REPO / "docs" / "start" / "install.md"]  # lines of a shell
    for path in [*REPO.glob("*.md"), *texts]:
        text = path.read_text()
        assert text.count(source.removeprefix("https://")) == (path in pasted), path
        assert f"pip install {PROJECT['name']}`" not in text or "publish" in text, path
