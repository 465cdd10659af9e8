"""Runs tasks on the workers of a Dask cluster.

The client submits no more tasks than the workers can start soon, so its memory, and the
scheduler's, do not grow with the number of shards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from geoprep.errors import GeoprepError, UsageError

if TYPE_CHECKING:
    from distributed import Client, Future

T = TypeVar("T")
R = TypeVar("R")

PER_THREAD = 2
"""Tasks in flight per thread of a worker: one that runs, one that waits on the worker."""
_LEAVING_S = 120.0
_CLOSING_S = 2
_CONNECTING = "15s"
_SAME = ("geoprep", "numpy", "numcodecs")
"""Packages on whose versions the bytes of a store may depend."""


class Dask:
    """Runs tasks on the workers of a Dask cluster, which may join and leave at any time.

    All workers need access to sources and store by the same addresses. Every method raises
    UsageError if the scheduler no longer answers.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._address = client.scheduler.address
        _check_versions(client)

    @classmethod
    def connect(cls, address: str) -> Dask:
        """Connect to a scheduler, such as ``tcp://HOST:8786``; UsageError if none answers."""
        try:
            from distributed import Client
        except ImportError as error:
            raise UsageError(
                "scheduler", "needs Dask: pip install 'geoprep[cluster]', here and on every worker"
            ) from error
        try:
            client = Client(address, timeout=_CONNECTING, set_as_default=False)
        except (OSError, ValueError, ImportError) as error:
            raise UsageError(
                f"no Dask scheduler answers at {address} ({_first_line(error)}): start one with "
                "`dask scheduler`, and workers with `dask worker ADDRESS`"
            ) from error
        try:
            return cls(client)
        except BaseException:
            client.close()
            raise

    @property
    def workers(self) -> int:
        """Number of threads of all workers."""
        with self._loss_named():
            return max(1, sum(int(count) for count in self._client.nthreads().values()))

    @property
    def dashboard(self) -> str:
        """Address of the scheduler's dashboard."""
        return str(self._client.dashboard_link)

    def close(self) -> None:
        """Disconnect from the cluster, which keeps running."""
        self._client.close(timeout=_CLOSING_S)

    def run_everywhere(self, function: Callable[[], None]) -> None:
        """Run a function in every worker process, unless the cluster is gone."""
        with suppress(Exception):
            self._client.run(function, on_error="ignore")

    def map_unordered(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield results as they finish; after an exception no further item is started.

        The tasks of a worker that dies go to other workers; leaving the loop early waits for those
        in progress. UsageError if more workers die over one task than Dask allows.
        """
        from distributed import KilledWorker, as_completed, wait

        queue = iter(items)
        running: set[Future[R]] = set()
        arriving = as_completed([], loop=self._client.loop)

        def start(item: T) -> None:
            future = self._client.submit(function, item, pure=False)
            running.add(future)
            arriving.add(future)

        try:
            with self._loss_named():
                for item in islice(queue, PER_THREAD * self.workers):
                    start(item)
                while running:
                    future = next(arriving)
                    running.remove(future)
                    try:
                        result = future.result()
                    except KilledWorker as error:
                        raise UsageError(
                            f"several Dask workers died over one task ({_first_line(error)}). See "
                            "their logs, and check that they have memory for one scene per thread. "
                            "Run the same command again to resume"
                        ) from error
                    # Refill before the result is yielded, so that no worker waits for the caller.
                    free = PER_THREAD * self.workers - len(running)
                    for item in islice(queue, max(0, free)):
                        start(item)
                    del future  # the scheduler may forget it
                    yield result
        finally:
            with suppress(Exception):  # the cluster may be gone
                wait(list(running), timeout=_LEAVING_S)
            with suppress(Exception):
                self._client.cancel(list(running))

    @contextmanager
    def _loss_named(self) -> Iterator[None]:
        """Raise UsageError if the scheduler is lost inside the block."""
        try:
            yield
        except GeoprepError:
            raise
        except Exception as error:
            # Tasks whose results are awaited are cancelled only when the scheduler is lost.
            if self._client.status == "running" and not isinstance(error, CancelledError):
                raise
            logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # reports it too
            address = self._address
            raise UsageError(
                f"the Dask scheduler at {address} no longer answers. Finished work is kept: start "
                "it and its workers again, and run the same command again to resume"
            ) from error


def _check_versions(client: Client) -> None:
    """Raise UsageError if workers would write other bytes, or could not unpickle their tasks."""
    told_by = client.get_versions(packages=list(_SAME))
    workers = told_by["workers"]
    if not workers:
        raise UsageError(
            f"the Dask scheduler at {client.scheduler.address} has no workers: start some with "
            f"`dask worker {client.scheduler.address}`"
        )
    mine = _versions(told_by["client"])
    # The scheduler unpickles tasks too.
    versions = {f"scheduler at {client.scheduler.address}": told_by["scheduler"]}
    versions |= {f"worker at {address}": told for address, told in sorted(workers.items())}
    for place, told in versions.items():
        if (theirs := _versions(told)) != mine:
            raise UsageError(
                f"the Dask {place} has {theirs}, and here are {mine}. The bytes of a store depend "
                "on these: install the same versions there and restart it"
            )


def _versions(told: dict[str, Any]) -> str:
    """Return the versions of Python (major.minor) and of packages."""
    python = ".".join(str(told["host"].get("python", "")).split(".")[:2])
    packages = [f"{name} {told['packages'].get(name) or 'missing'}" for name in _SAME]
    return ", ".join([f"Python {python}", *packages])


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
