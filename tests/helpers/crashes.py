"""Builds in processes of their own, which end at a chosen moment.

Run as a program this is a server: it imports everything once, then forks a child for every request
(a line of JSON), so that a build that is to be killed costs a third of a second and not three.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from geoprep.building.plan import Plan
from geoprep.sources.scene import Scene
from helpers.forks import Server

# Shards that cut scenes, and limits of a whole city: a survey, then many shards.
OPTIONS = {"tile": 32, "shard_tiles": 14, "rescale": "city"}
# Audit events of whatever changes a file system; see the audit event table of Python.
CHANGES = {"os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}
GROWS = {"os.link", "os.mkdir"}


@dataclass(frozen=True)
class Ending:
    """How a build ended.

    ``events`` counts changes of files in and beside the store; ``peak`` is the most memory that the
    process held, in bytes. A build that was killed tells nothing.
    """

    killed: bool
    state: str = ""
    error: str = ""
    message: str = ""
    events: int = 0
    peak: int = 0


class Builder(Server):
    """Builds stores of some scenes, each time in a new process."""

    def __init__(self, scenes: Sequence[Scene], **options: Any) -> None:
        given = [asdict(scene) for scene in scenes]
        self._common: dict[str, Any] = {"scenes": given, "options": options}
        super().__init__("helpers.crashes")

    def build(
        self, out: Path, *, scenes=None, overwrite=False, die_at=0, full_at=0, **options: Any
    ) -> Ending:
        """Build the first ``scenes``, or all of them, into ``out``.

        ``die_at``: SIGKILL before this change of a file (1 is the first); ``full_at``: from this
        change on the disk is full. ``options`` go over those of the builder.
        """
        request = {"out": str(out), "overwrite": overwrite, "die_at": die_at, "full_at": full_at}
        request |= {"scenes": self._common["scenes"][:scenes]}
        request |= {"options": self._common["options"] | options}
        return Ending(**self.ask(request))


def serve() -> None:
    """Answer requests until the input ends."""
    warm = False
    for line in sys.stdin:
        request = json.loads(line)
        warm = warm or _import_and_compile(request)
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(reader)
            os.write(writer, json.dumps(_build(request)).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as stream:
            answer = stream.read()
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        lost = {"killed": killed, "error": "" if killed else "lost"}
        print(answer or json.dumps(lost), flush=True)


def _import_and_compile(request: dict[str, Any]) -> bool:
    """Do what a build does first and no child should repeat: import modules, load kernels.

    zarr is imported but not used: its thread would not exist in the children.
    """
    import zarr  # noqa: F401

    from geoprep.building.journal import Journal
    from geoprep.building.run import shard_tasks
    from geoprep.building.shard import build_shard
    from geoprep.building.survey import survey
    from geoprep.executors.threads import Threads

    plan = _plan({**request, "scenes": request["scenes"][:1]})
    with tempfile.TemporaryDirectory() as folder:
        with Journal(Path(folder, "a.zarr")) as journal:
            surveyed = survey(plan, Threads(1), journal, None)
        for task in shard_tasks(plan, str(Path(folder, "a.zarr")), range(plan.shards), surveyed):
            build_shard(task)
    return True


def _plan(request: dict[str, Any]) -> Plan:
    from helpers.factory import plan_of

    return plan_of([Scene(**scene) for scene in request["scenes"]], **request["options"])


def _build(request: dict[str, Any]) -> dict[str, Any]:
    from geoprep.building.run import build
    from geoprep.executors.threads import Threads

    plan = _plan(request)
    events = _watch(request["out"], request["die_at"], request["full_at"])
    answer: dict[str, Any] = {"killed": False}
    try:
        out = Path(request["out"])
        answer["state"] = build(plan, out, Threads(2), overwrite=request["overwrite"]).state
    except Exception as error:
        answer |= {"error": type(error).__name__, "message": str(error)}
    answer["events"] = next(events) - 1
    answer["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return answer


def _watch(out: str, die_at: int, full_at: int) -> itertools.count[int]:
    """Count changes of files under ``out`` and act at the requested one."""
    counter = itertools.count(1)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            writes = writes or bool(set(str(mode or "")) & set("wxa+"))
        elif event in CHANGES:
            path, mode, writes = arguments[0], "", True
        else:
            return
        # rmtree names what it removes relative to an open folder.
        if not writes or not (str(path).startswith(out) or event in ("os.remove", "os.rmdir")):
            return
        number = next(counter)
        if number == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if full_at and number >= full_at and (event == "open" or event in GROWS):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    sys.addaudithook(watch)
    return counter


if __name__ == "__main__":
    serve()
