"""Workers of a Dask cluster: the same tasks, on other processes and machines.

What a task is given and returns is small: pixels go from a source to a store without passing the
scheduler. The client holds no more tasks than the workers can begin soon, so its memory, and the
scheduler's, do not grow with the number of shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from geoprep.errors import UsageError

if TYPE_CHECKING:
    from distributed import Client, Future

T = TypeVar("T")
R = TypeVar("R")

PER_THREAD = 2
"""Tasks in flight per thread of a worker: one that runs, one that waits on the spot."""
_BLAMED = 3
"""Times that workers may die over one task, or over others beside it, until that is the end."""
_BATCH = 64
_LEAVING = 120.0
_CONNECTING = "15s"
_SAME = ("geoprep", "numpy", "numcodecs")
"""Packages on whose versions the bytes of a store may depend."""


class Dask:
    """Runs tasks on the workers of a Dask cluster.

    Sources and stores must mean the same to all of them: a shared disk under one path, or a bucket
    whose credentials every worker has in its environment.

    Parameters
    ----------
    client
        Connected; its workers are those there are when a map begins, and those that join.

    Raises
    ------
    UsageError
        There is no worker, or one has other versions of Python, geoprep, numpy or numcodecs.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        _check_versions(client)

    @classmethod
    def connect(cls, address: str) -> Dask:
        """Connect to a scheduler, such as ``tcp://HOST:8786``.

        Raises
        ------
        UsageError
            Dask is not installed, or no scheduler answers; else as the class does.
        """
        try:
            from distributed import Client
        except ImportError as error:
            raise UsageError(
                "a scheduler needs Dask: pip install 'geoprep[cluster]', here and on every worker"
            ) from error
        try:
            client = Client(address, timeout=_CONNECTING, set_as_default=False)
        except (OSError, ValueError, ImportError) as error:
            raise UsageError(
                f"no Dask scheduler answers at {address} ({_first_line(error)}): start one with "
                "`dask scheduler`, and `dask worker ADDRESS` where the work is to be done"
            ) from error
        try:
            return cls(client)
        except BaseException:
            client.close()
            raise

    @property
    def workers(self) -> int:
        """Threads of all workers."""
        return max(1, sum(int(count) for count in self._client.nthreads().values()))

    @property
    def dashboard(self) -> str:
        """Address of the page that shows what the cluster does."""
        return str(self._client.dashboard_link)

    def close(self) -> None:
        """Leave the cluster; it goes on."""
        self._client.close()

    def map_ordered(
        self,
        function: Callable[[T], R],
        items: Sequence[T],
        lost: Callable[[T], R] | None = None,
    ) -> list[R]:
        """Return the results in the order of the items; the first exception is raised.

        Parameters
        ----------
        lost
            Returns the result of an item that workers died over; without it UsageError is raised.
        """
        size = max(1, min(_BATCH, len(items) // (PER_THREAD * self.workers)))
        batches: list[_Batch[T, R]] = [
            _Batch(first, dict(enumerate(items[first : first + size])))
            for first in range(0, len(items), size)
        ]
        spared = None if lost is None else partial(self._spared, function, lost)
        found = dict(self.map_unordered(partial(_each, function), batches, spared))
        return [result for batch in batches for result in found[batch.first]]

    def _spared(
        self, function: Callable[[T], R], lost: Callable[[T], R], batch: _Batch[T, R]
    ) -> _Batch[T, R]:
        """Return a batch none of whose items ends a worker."""
        known = dict(batch.known)
        for place, item in batch.items.items():
            if not self.survives(function, item):
                known[place] = lost(item)
        items = {place: item for place, item in batch.items.items() if place not in known}
        return _Batch(batch.first, items, known)

    def map_unordered(
        self,
        function: Callable[[T], R],
        items: Iterable[T],
        lost: Callable[[T], T] | None = None,
    ) -> Iterator[R]:
        """Yield results as they come; after an exception no further item is begun.

        A worker that dies is nothing to the caller: its tasks go to others. Leaving the loop early
        waits for the tasks in progress.

        Parameters
        ----------
        lost
            Returns what is to be run instead of an item that several workers died over, the same
            item where another was to blame; without it, or where that goes on, UsageError is
            raised.
        """
        from distributed import KilledWorker, as_completed

        queue = iter(items)
        running: dict[Future[R], tuple[T, int]] = {}
        arriving = as_completed([], loop=self._client.loop)

        def begin(item: T, blamed: int = 0) -> None:
            future = self._client.submit(function, item, pure=False)
            running[future] = item, blamed
            arriving.add(future)

        try:
            for item in islice(queue, PER_THREAD * self.workers):
                begin(item)
            while running:
                future = next(arriving)
                item, blamed = running.pop(future)
                try:
                    result = future.result()
                except RuntimeError as error:
                    _refuse_unreadable(error)
                    raise
                except KilledWorker as error:
                    if lost is None or blamed == _BLAMED:
                        raise UsageError(_deadly(error)) from error
                    begin(lost(item), blamed + 1)
                    continue
                # Refill before the result is handed on, so that no worker waits for the caller.
                room = PER_THREAD * self.workers - len(running)
                for item in islice(queue, max(0, room)):
                    begin(item)
                del future  # the scheduler may forget it
                yield result
        finally:
            self._leave(list(running))

    def survives(self, function: Callable[[T], object], item: T) -> bool:
        """Return whether a worker can carry out a task, whatever comes of it, and live."""
        from distributed import KilledWorker

        future = self._client.submit(function, item, pure=False)
        try:
            future.result()
        except KilledWorker:
            return False
        except Exception:
            return True
        return True

    def _leave(self, running: list[Future[Any]]) -> None:
        from distributed import wait

        if running:
            with suppress(Exception):  # the cluster may be what went away
                wait(running, timeout=_LEAVING)
            with suppress(Exception):
                self._client.cancel(running)


@dataclass(frozen=True)
class _Batch(Generic[T, R]):
    """Items by their place, and the results of those that are not to be run.

    Attributes
    ----------
    first
        Place of its first item among all.
    """

    first: int
    items: dict[int, T]
    known: dict[int, R] = field(default_factory=dict)


def _each(function: Callable[[T], R], batch: _Batch[T, R]) -> tuple[int, list[R]]:
    found = batch.known | {place: function(item) for place, item in batch.items.items()}
    return batch.first, [found[place] for place in sorted(found)]


def _check_versions(client: Client) -> None:
    """Refuse workers that would make other bytes, or could not even read their tasks."""
    found = client.get_versions(packages=list(_SAME))
    workers = found["workers"]
    if not workers:
        raise UsageError(
            f"the Dask scheduler at {client.scheduler.address} has no workers: start some with "
            f"`dask worker {client.scheduler.address}`"
        )
    mine = _versions(found["client"])
    # The scheduler unpacks tasks too.
    everybody = {f"scheduler at {client.scheduler.address}": found["scheduler"]}
    everybody |= {f"worker at {address}": told for address, told in sorted(workers.items())}
    for who, told in everybody.items():
        theirs = _versions(told)
        wrong = [
            f"{name} {theirs[name] or 'missing'}, here {version}"
            for name, version in mine.items()
            if theirs[name] != version
        ]
        if wrong:
            raise UsageError(
                f"the Dask {who} has {'; '.join(wrong)}: a store is the same bytes "
                "only where these are the same; install the same versions there and restart it"
            )


def _versions(told: dict[str, Any]) -> dict[str, str]:
    """Return Python's version without its last part, and those of packages; "" where missing."""
    python = ".".join(str(told["host"].get("python", "")).split(".")[:2])
    packages = {name: str(told["packages"].get(name) or "") for name in _SAME}
    return {"python": python, **packages}


def _refuse_unreadable(error: RuntimeError) -> None:
    """Raise UsageError where a cluster cannot unpack a task: a newcomer has other versions."""
    if "deserialization" in str(error):
        raise UsageError(
            "the Dask cluster cannot read our tasks: its scheduler or a worker that joined has "
            "another geoprep. Install the same versions everywhere, and restart them"
        ) from error


def _deadly(error: Exception) -> str:
    return (
        f"several Dask workers died over one task ({_first_line(error)}). See their logs: is there "
        "memory enough for a scene per thread? Run the same command again to carry on"
    )


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
