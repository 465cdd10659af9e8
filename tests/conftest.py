"""Fixtures shared by all tests."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.forks import Forks
from helpers.strict import EXCEPTIONS
from hypothesis import HealthCheck, settings

import geoprep

# First calls compile kernels and load PROJ's database: no property is about their time.
# Few examples of many properties, other ones in every run.
settings.register_profile(
    "unhurried", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unhurried")

REPO = Path(__file__).resolve().parents[1]

# Processes that tests start by spawn import the test by its name. Last, so that the packages under
# test are the installed ones where they are installed.
sys.path.append(str(REPO))

# Processes that tests start by forkserver have imported torch once.
multiprocessing.set_forkserver_preload(["loaders.dataset"])

# What nohup and shells in the background start ignores signals, and hands that on to the processes
# that tests start.
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

# What collecting makes stays until the end, half a million objects: looked through for garbage
# while they grow and in every full collection afterwards they cost a second each time.
gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    """Make warnings errors in `make test`, but not with other versions of the dependencies."""
    if os.environ.get("GEOPREP_TEST_WARNINGS") == "error":
        for line in ("error", *EXCEPTIONS):
            config.addinivalue_line("filterwarnings", line)


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but never again among what was collected as tests."""
    gc.freeze()
    gc.enable()


# Files that take longest, so that no process is left alone with one of them at the end.
FIRST = (
    "e2e/test_readme.py",
    "e2e/test_fit_command.py",
    "training/runners/test_export.py",
    "e2e/test_demo.py",
    "geoprep/building/test_cluster.py",
    "test_frozen.py",
    "training/prediction/test_instances.py",
    "geoprep/building/test_run.py",
    "geoprep/building/test_full_disk.py",
    "geoprep/building/test_resume.py",
    "loaders/test_interrupts.py",
    "benchmarks/test_preprocess.py",
    "training/test_fit.py",
    "training/run/test_resume.py",
    "geoprep/cli/test_commands.py",
    "geoprep/building/test_bucket.py",
    "loaders/test_crops.py",
    "geoprep/verify/test_store_check.py",
    "e2e/test_bucket.py",
    "geoprep/executors/test_cluster.py",
    "e2e/test_recipes.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first, all others in their order."""
    places = {str(REPO / "tests" / name): place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(str(item.path), len(FIRST)))


def device_of_tests() -> str:
    """Return the device of the tests marked `accelerator`; empty if torch finds none."""
    named = os.environ.get("GEOPREP_TEST_DEVICE", "")
    if named:
        return named
    import torch

    found = torch.accelerator.current_accelerator()
    return found.type if found is not None and torch.accelerator.is_available() else ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `accelerator` where there is none."""
    if item.get_closest_marker("accelerator") and not device_of_tests():
        pytest.skip("torch finds no accelerator; GEOPREP_TEST_DEVICE=cpu runs it on the CPU")


@pytest.fixture(scope="session")
def accelerator() -> str:
    """Return the name of the device of the tests marked `accelerator`."""
    return device_of_tests()


@pytest.fixture(scope="module")
def same_process():
    """Leave allocator, threads and random numbers of this process as training finds them."""
    import torch

    threads, random = torch.get_num_threads(), torch.get_rng_state()
    with pytest.MonkeyPatch.context() as patch:
        for place in ("training.prediction.job", "training.run.start"):
            patch.setattr(f"{place}.keep_memory", lambda *_, **__: "as it is")
        yield
    torch.set_num_threads(threads)
    torch.set_rng_state(random)


@pytest.fixture(scope="module")
def short_runs(same_process):
    """Leave out of training runs of this process what takes most of the time of a short one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.run.report.draw_curves", lambda path, _: path.touch())
        yield


@pytest.fixture(scope="session")
def python():
    """Return a function that runs Python with some words, in a process of its own, to its end."""

    def run(*words, **options):
        command = [sys.executable, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=1800, **options)

    return run


@pytest.fixture(scope="module")
def entry_points(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Declare the commands of pyproject.toml, however old the installation is that tests use."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    lines = [
        f"[{group}]\n{name} = {value}"
        for group, one in project["entry-points"].items()
        for name, value in one.items()
    ]
    folder = tmp_path_factory.mktemp("metadata")
    info = folder / "geoprep-0.dist-info"
    info.mkdir()
    # The version is that of the code: processes on this path tell it to each other.
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: geoprep\nVersion: {geoprep.__version__}\n"
    )
    (info / "entry_points.txt").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        yield


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Start processes that need not import torch."""
    with Forks() as found:
        yield found


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real SpaceNet samples, or skip: the project never depends on it."""
    folder = REPO.parent / "shared" / "data"
    if not (folder / "AOI_2_Vegas").is_dir():
        pytest.skip(f"real sample data not present at {folder}")
    return folder
