"""Settings from files and options; unknown ones are refused with the most similar name."""

import contextlib
import errno
import importlib
import io
import os
import re
import signal
from dataclasses import fields

import pytest

from geoprep.cli.running import run
from geoprep.errors import StoreError, UsageError
from geoprep.options import settings_of
from training.cli import Command
from training.fit import COMMAND, main
from training.process import is_out_of_memory
from training.setting_texts import Stage, write_settings
from training.settings import SECTIONS, Config

INTERRUPTED = "\n\nInterrupted. Finished work is kept. Run the same command again to resume.\n"


def help_of(command, way):
    """The text that a command prints for ``--help`` or ``--help-all``."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert run(command, [way]) == 0
    return printed.getvalue()


def config(*arguments):
    return Config.from_flat(COMMAND.parse(arguments))


def test_defaults_of_settings():
    assert config("moscow.zarr") == Config(stores=("moscow.zarr",))
    assert config("a.zarr", "b.zarr").stores == ("a.zarr", "b.zarr")


def test_options_override_the_file_in_any_order(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "lr: 2e-4\nbatch-size: 12\nstores: [x.zarr]\ncrop: none\nepochs: 3\nbands: [red, 2]\n"
    )
    for order in (("--epochs", "5", "--config", str(file)), ("--config", str(file), "--epochs=5")):
        found = config(*order)
        assert found.lr == 2e-4
        assert found.epochs == 5
        assert found.batch_size == 12
        assert found.crop is None
        assert found.bands == "red,2"
        assert found.stores == ("x.zarr",)
    assert config("y.zarr", "--config", str(file)).stores == ("y.zarr",)


def test_settings_written_to_a_file_are_read_back(tmp_path):
    file = tmp_path / "config.yaml"
    made = config("m.zarr", "--lr", "3e-5", "--augment", "none", "--stages", "32@16:2,64:1")
    write_settings(file, SECTIONS, made.flat())
    assert config("--config", str(file)) == made


def test_words_that_yaml_reads_as_truth_values(tmp_path):
    """YAML reads ``off`` as False, and ``on`` as True."""
    file = tmp_path / "run.yaml"
    file.write_text("compile: off\nquiet: on\noverwrite: off\n")
    found = config("m.zarr", "--config", str(file))
    assert (found.compile, found.quiet, found.overwrite) == ("off", True, False)
    file.write_text("augment: off\n")
    with pytest.raises(UsageError, match="`augment` 'off' is unknown: use one of d4"):
        config("m.zarr", "--config", str(file))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bach-size", "4"], "--batch-size"),
        (["--learning_rte=1"], "--learning_rte"),
        (["--augment", "d5"], "--augment 'd5' is unknown: use one of d4, flips, none"),
        (["--engine", "tpu"], "--engine 'tpu' is unknown: use one of auto, native, ipex"),
        (["--lr", "fast"], "--lr: 'fast' is not a number"),
        (["--accumulate", "1.5"], "--accumulate: '1.5' is not a whole number"),
        (["--config", "nowhere.yaml"], "nowhere.yaml cannot be read"),
    ],
)
def test_invalid_options_are_named_in_the_error(arguments, message, capsys):
    assert main(["moscow.zarr", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("weight_dcay: 0.1", r"unknown setting 'weight_dcay': did you mean weight_decay\?"),
        ("accumulate: soon", "`accumulate`: 'soon' is not a whole number"),
        ("- lr", "holds no settings"),
        ("lr: [", "cannot be read"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, text, message):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        COMMAND.parse(["moscow.zarr", "--config", str(file)])


def test_settings_have_one_name_each_and_a_line_of_help():
    names = [item.name for section in SECTIONS for item in fields(section)]
    assert len(set(names)) == len(names)
    text = help_of(COMMAND, "--help-all")
    for section in SECTIONS:
        for item in fields(section):
            flag = f"--{item.name.replace('_', '-')}"
            assert flag in text or item.name == "stores"
            assert len(settings_of(section)[item.name].help.split()) > 1, item.name
    assert "--resume runs/moscow" in text
    assert re.search(r"\[default:\s+30;\s+more than 0\]", text)


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("--lr", "-1", "more than 0"),
        ("--lr", "nan", "a number"),
        ("--threads", "0", "from 1 to 1024"),
        ("--weight-decay", "-50", "at least 0 and less than 1"),
        ("--patience", "0", "at least 1"),
        ("--ema", "1.0", "less than 1"),
        ("--batch-size", "0", "at least 1"),
        ("--save-every", "10x", "write a number of steps"),
    ],
)
def test_values_out_of_range_are_refused_also_in_a_file(tmp_path, capsys, option, value, wanted):
    assert main(["moscow.zarr", option, value]) == 2
    said = capsys.readouterr().err
    assert option in said
    assert wanted in said
    assert len(said.splitlines()) == 1
    file = tmp_path / "run.yaml"
    file.write_text(f"{option.removeprefix('--')}: {value}\n")
    with pytest.raises(UsageError, match=re.escape(wanted)):
        COMMAND.parse(["moscow.zarr", "--config", str(file)])


def test_stages_are_parsed_with_their_epochs():
    plan = config("--stages", "325@256:2, 650:1")
    assert plan.all_stages == (Stage(325, 256, 2), Stage(650, None, 1))
    assert [plan.stage_of(e) for e in range(3)] == [0, 0, 1]
    assert plan.ends == (2, 3)


@pytest.mark.parametrize("text", ["325", "325@256", "a@b:c", "325x256:3", "325@0:3", "325:0"])
def test_malformed_stages_are_refused(text):
    with pytest.raises(UsageError, match="LEVEL@CROP:EPOCHS"):
        config("--stages", text)


@pytest.mark.parametrize(
    ("given", "load", "wanted"),
    [
        ({}, 7.9, (None, "10000")),
        ({}, 8.1, (None, "0")),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, 20, ("ACTIVE", None)),
        ({"GOMP_SPINCOUNT": "100"}, 20, (None, "100")),
    ],
)
def test_idle_threads_spin_unless_the_machine_is_crowded(monkeypatch, given, load, wanted):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    for name in names:
        monkeypatch.setenv(name, "x")  # so that it is as before afterwards
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    seen = []
    assert run(running(lambda: seen.append(tuple(map(os.environ.get, names))) or 0), []) == 0
    assert seen == [wanted]


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (UsageError("`batch_size` 0: must be at least 1"), 2, "--batch-size 0: must be at least 1"),
        (UsageError("`stores` is empty"), 2, "STORE is empty"),
        (UsageError("`gsd` and `quiet` differ"), 2, "`gsd` and --quiet differ"),
        (UsageError("write lines such as `lr: 2e-4`"), 2, "write lines such as `lr: 2e-4`"),
        (StoreError("no"), 1, "no"),
        (OSError(28, "No space left on device", "a/b"), 1, "a/b: No space left on device"),
        (
            RuntimeError("CUDA out of memory. Tried to"),
            1,
            "out of memory (CUDA out of memory. Tried to): use a smaller --batch-size",
        ),
    ],
)
def test_errors_are_one_line_with_the_options_of_the_command(capsys, error, status, says):
    assert run(running(raising(error)), []) == status
    assert capsys.readouterr().err == f"Error: {says}\n"


def running(action):
    """The command of a run, which calls a function instead."""
    return Command("fit", SECTIONS, "", action=lambda _: action())


def raising(error):
    """Return a command that raises an error."""

    def command():
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "status", "printed"),
    [
        (KeyboardInterrupt(), 130, INTERRUPTED),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, ""),
    ],
)
def test_an_end_from_outside_is_no_error(capsys, error, status, printed):
    assert run(running(raising(error)), []) == status
    assert capsys.readouterr().err == printed


@pytest.mark.parametrize("name", ["fit", "evaluate", "predict"])
def test_help_lists_common_options_and_help_all_every_option(name):
    module = importlib.import_module(f"training.{name}")
    texts = [help_of(module.COMMAND, way) for way in ("--help", "--help-all")]
    short, whole = (set(re.findall(r"^  (--[a-z0-9-]+)", text, re.MULTILINE)) for text in texts)
    assert short < whole
    assert len(short) <= 20
    assert f"{len(whole - short)} more options: {name} --help-all" in texts[0]
    assert "more options" not in texts[1]
    assert texts[0].index(f"  geoprep {name} ") < texts[0].index("  --")


@pytest.mark.parametrize(
    ("name", "arguments", "advice"), [("fit", [], True), ("export", ["best.pt"], False)]
)
def test_a_smaller_batch_is_advised(name, arguments, advice, capsys, monkeypatch):
    monkeypatch.setattr(f"training.{name}.{name}", lambda _: raising(MemoryError())())
    assert run(importlib.import_module(f"training.{name}").COMMAND, arguments) == 1
    assert ("--batch-size" in capsys.readouterr().err) == advice


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_before_a_command_handles_it_gives_its_status(name, capsys):
    number = getattr(signal, name)
    assert run(running(lambda: signal.raise_signal(number) or 0), []) == 128 + number
    assert "Interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("Native API failed. 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_every_backend_says_that_memory_is_full(error):
    assert is_out_of_memory(error)
    assert not is_out_of_memory(ValueError(str(error)))
