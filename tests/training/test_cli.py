"""Settings: a file, then flags; what is not known is refused, naming the nearest."""

from dataclasses import fields

import pytest

from geoprep.errors import UsageError
from training.cli import make_parser, parse, write_file
from training.config import Config, sections, setting_names


def config(*arguments):
    return parse(arguments).over({})


def test_defaults_hold_where_nothing_is_said():
    assert config("moscow.zarr").optim == Config().optim
    assert config("a.zarr", "b.zarr").data.stores == ("a.zarr", "b.zarr")


def test_flags_win_over_the_file_wherever_they_stand(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("lr: 2e-4\nbatch-size: auto\nstores: [x.zarr]\ncrop: none\nepochs: 3\n")
    for order in (("--epochs", "5", "--config", str(file)), ("--config", str(file), "--epochs=5")):
        found = config(*order)
        assert found.optim.lr == 2e-4
        assert found.optim.epochs == 5
        assert found.sampling.batch_size == "auto"
        assert found.sampling.crop is None
        assert found.data.stores == ("x.zarr",)
    assert config("y.zarr", "--config", str(file)).data.stores == ("y.zarr",)


def test_what_is_written_reads_the_same(tmp_path):
    file = tmp_path / "config.yaml"
    made = config("m.zarr", "--lr", "3e-5", "--augment", "none", "--stages", "32@16:2,64:1")
    write_file(file, made)
    assert config("--config", str(file)) == made


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bach-size", "4"], "did you mean --batch-size"),
        (["--learning_rte=1"], "unknown option --learning_rte"),
        (["--augment", "d5"], "--augment: 'd5' is not d4|flips|none"),
        (["--lr", "fast"], "--lr: 'fast' is not a number"),
        (["--epochs", "1.5"], "--epochs: '1.5' is not a whole number"),
        (["--config", "nowhere.yaml"], "nowhere.yaml cannot be read"),
    ],
)
def test_what_is_not_understood_is_named(arguments, message):
    with pytest.raises(UsageError) as error:
        parse(["moscow.zarr", *arguments])
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("weight_dcay: 0.1", r"unknown setting 'weight_dcay': did you mean weight_decay\?"),
        ("epochs: soon", "--epochs: 'soon' is not a whole number"),
        ("- lr", "holds no settings"),
        ("lr: [", "cannot be read"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, text, message):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        parse(["moscow.zarr", "--config", str(file)])


def test_settings_have_one_name_each_and_a_line_of_help():
    names = setting_names()
    assert len(set(names)) == len(names)
    text = make_parser().format_help()
    for _, section in sections():
        for item in fields(section):
            flag = f"--{item.name.replace('_', '-')}"
            assert item.name == "stores" or (flag in text and item.metadata["help"]), flag
    assert "--resume runs/moscow" in text
    assert "(default: 30)" in text
