"""The commands of this package as ``geoprep`` finds, lists and runs them."""

import os
from importlib import import_module

import pytest
from click.testing import CliRunner

import geoprep
from geoprep.cli.commands import cli
from geoprep.cli.entry_points import LazyCommand
from training import commands

GEOPREP = ("-P", "-c", "from geoprep.cli import main; main()")
"""As the script of an installation: the current folder is not on the path."""
LAZY = [value for value in vars(commands).values() if isinstance(value, LazyCommand)]


@pytest.mark.usefixtures("entry_points")
def test_geoprep_lists_and_completes_every_command(monkeypatch):
    listed = CliRunner().invoke(cli, ["--help"]).output
    for command in LAZY:
        assert f"  {command.name} " in listed
        assert f" {command.short_help}\n" in listed
    words = {"_GEOPREP_COMPLETE": "bash_complete", "COMP_WORDS": "geoprep fit --va"}
    found = CliRunner().invoke(cli, env={**words, "COMP_CWORD": "2"}, prog_name="geoprep").output
    assert "plain,--val-batch-size\n" in found


@pytest.mark.parametrize("command", LAZY, ids=lambda command: command.name)
def test_a_command_is_that_of_its_module(command):
    own = import_module(command._module).COMMAND
    assert own.name == command.name
    shown = command.make_context(command.name, [], resilient_parsing=True)
    assert shown.command is own


@pytest.mark.usefixtures("entry_points")
@pytest.mark.parametrize("words", [("--help",), ("info", "none.zarr"), ("fitt",)])
def test_other_commands_import_neither_torch_nor_the_trainer(words, python):
    code = (
        "import atexit, sys\nfrom geoprep.cli import main\n"
        "seen = ('torch', 'training.cli', 'training.settings')\n"
        "atexit.register(lambda: print([name for name in seen if name in sys.modules]))\nmain()"
    )
    done = python("-c", code, *words)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.usefixtures("entry_points")
def test_a_folder_of_the_user_hides_no_module_but_gives_models(tmp_path, python):
    for name in ("training", "loaders", "torch"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('hidden')")
    (tmp_path / "mymodels.py").write_text(
        "def small(bands, channels):\n    raise RuntimeError(bands)\n"
    )
    shown = python(*GEOPREP, "fit", "--help", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("Usage: ")
    geoprep.synthesize("moscow", scenes=2, size=64, out=tmp_path / "data", progress=False)
    store = tmp_path / "moscow.zarr"
    geoprep.build_zarr("moscow", source=tmp_path / "data", tile=64, out=store, progress=False)
    words = ("fit", "moscow.zarr", "--model", "mymodels:small", "--crop", "32", "--device", "cpu")
    done = python(*GEOPREP, *words, cwd=tmp_path)
    assert "hidden" not in done.stderr
    assert "RuntimeError: 3 " in done.stderr


@pytest.mark.usefixtures("entry_points")
def test_export_of_a_checkpoint_names_the_command_for_models():
    done = CliRunner().invoke(cli, ["export", "run/best.pt", "--out", "model.onnx"])
    assert "`geoprep export-model` exports a model" in str(done.exception)


def test_help_and_usage_errors_need_neither_metadata_nor_torch(tmp_path, python):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata as metadata\n"
        "find = metadata.MetadataPathFinder.find_distributions\n"
        "def others(*given):\n"
        "    return (one for one in find(*given) if one.metadata['Name'] != 'geoprep')\n"
        "metadata.MetadataPathFinder.find_distributions = staticmethod(others)\n"
    )
    (tmp_path / "torch.py").write_text("raise ImportError('torch was imported')")
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    for name in ("fit", "evaluate", "predict", "export"):
        done = python("-m", f"training.{name}", "--help", env=env)
        assert done.stdout.startswith(f"Usage: python -m training.{name} "), done.stderr
    wrong = python("-m", "training.fit", "moscow.zarr", "--bach-size", "3", env=env)
    assert (wrong.returncode, "'--batch-size'" in wrong.stderr) == (2, True), wrong.stderr
    said = python("-c", "from geoprep.cli import main; main()", "--version", env=env).stdout
    assert said == f"geoprep, version {geoprep.__version__}\n"
    listed = python("-c", "from geoprep.cli import main; main()", "--help", env=env)
    assert listed.returncode == 0
    assert "  fit " not in listed.stdout
