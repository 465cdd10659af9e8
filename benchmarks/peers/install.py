"""Install the other loaders into the current environment, one by one.

    .venv-peers/bin/python -m benchmarks.peers.install [OPTIONS FOR PIP]

The packages are those of the extra ``peers`` in pyproject.toml, in that order, in the versions of
constraints-peers.txt. A loader that cannot be installed is reported and left out; the benchmark
skips it. FFCV is compiled against system libraries; missing ones are reported.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints-peers.txt"

BASE = ("torch", "numpy")
"""Packages that all loaders need."""

NATIVE = {
    "ffcv": (("opencv4", "libturbojpeg"), ("pkg-config", "libturbojpeg0-dev", "libopencv-dev")),
}
"""Loader to names of libraries in pkg-config, and to their Debian packages."""


def main(arguments: Sequence[str]) -> int:
    """Install all loaders that can be installed; return 1 if torch cannot, else 0.

    Parameters
    ----------
    arguments
        Further arguments of every ``pip install``, such as ``--extra-index-url``.
    """
    if not _pip([*BASE, *arguments]):
        print("torch could not be installed: see the messages above", file=sys.stderr)
        return 1
    left_out = [peer for peer in peers() if not _install(peer, arguments)]
    if left_out:
        print(f"left out, see the messages above: {', '.join(left_out)}", file=sys.stderr)
    return 0


def peers(project: Path = ROOT / "pyproject.toml") -> list[str]:
    """Return the requirements of the extra ``peers``, in order."""
    with project.open("rb") as file:
        found: list[str] = tomllib.load(file)["project"]["optional-dependencies"]["peers"]
    return found


def _install(peer: str, arguments: Sequence[str]) -> bool:
    print(f"peers: {peer}", flush=True)
    libraries, packages = NATIVE.get(peer.partition(">")[0], ((), ()))
    if libraries and not _found(libraries):
        print(
            f"{peer} is compiled against {' and '.join(libraries)}, which pkg-config does not "
            f"find. On Debian or Ubuntu: sudo apt-get install {' '.join(packages)}; then run make "
            "bench-peers again",
            file=sys.stderr,
        )
        return False
    # The base is named each time, so that no package installs another torch.
    return _pip([*BASE, peer, *arguments])


def _pip(arguments: Sequence[str]) -> bool:
    """Run ``pip install``; return True if it succeeded."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, "-c", str(CONSTRAINTS), *arguments], check=False)
    return done.returncode == 0


def _found(libraries: Sequence[str]) -> bool:
    """Return True if pkg-config finds these libraries."""
    if not shutil.which("pkg-config"):
        return False
    return subprocess.run(["pkg-config", "--exists", *libraries], check=False).returncode == 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
