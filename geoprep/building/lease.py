"""The lock of a build in a bucket: an object that its owner renews and no other process replaces.

A lock of the file system ends with its process, an object does not. So the owner writes the object
again every few seconds, each time only if it is still the one written before. A process that finds
one which is not renewed takes it over. Clocks of several machines are not compared.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from geoprep.errors import GeoprepError, StoreError
from geoprep.storage import Bucket, machine_id

BEAT = 10.0
"""Seconds between renewals."""
PATIENCE = 45.0
"""Seconds without renewal after which an owner counts as gone; it has stopped itself by then."""
LOCK = "lock"


class Lease:
    """The right to build a store, held from :meth:`take` to :meth:`stop`.

    Parameters
    ----------
    bucket
        The build's folder, ``s3://.../NAME.zarr.build``.
    store
        The store's address, for messages.
    """

    def __init__(self, bucket: Bucket, store: str) -> None:
        self._bucket = bucket
        self._store = store
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._tag = ""
        self._renewed = 0.0
        self._lost = ""
        self._beats = 0
        self.token = uuid.uuid4().hex

    def take(self) -> None:
        """Acquire the lock.

        Raises
        ------
        StoreError
            Another build of the same store is running.
        """
        tag = self._bucket.put_if(LOCK, self._body(), None)
        while tag is None:
            found = self._bucket.find(LOCK)
            if found is not None and not _is_gone(_parsed(found[0])):
                self._wait_for_a_beat(found)
            tag = self._bucket.put_if(LOCK, self._body(), found[1] if found else None)
        self._tag, self._renewed = tag, time.monotonic()
        self._thread = threading.Thread(target=self._renew, name="geoprep-lease", daemon=True)
        self._thread.start()

    @property
    def held(self) -> bool:
        """Whether no other build can own the store by now."""
        if not self._lost and time.monotonic() - self._renewed > PATIENCE:
            self._lost = f"it could not be renewed for {PATIENCE:.0f} seconds"
        return not self._lost

    def check(self) -> None:
        """Raise StoreError if another build may own the store."""
        if not self.held:
            raise StoreError(
                f"{self._store}: this build has lost its lock ({self._lost}). The store is "
                "not marked complete; run the same command again to resume"
            )

    def stop(self) -> None:
        """Stop renewing."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def _renew(self) -> None:
        while not self._lost and not self._end.wait(BEAT):
            self._beats += 1
            begun = time.monotonic()
            try:
                tag = self._bucket.put_if(LOCK, self._body(), self._tag)
            except GeoprepError:
                continue  # a temporary fault; `check` limits how long it may last
            if tag is None:
                self._lost = "another build took it over"
            else:
                self._tag, self._renewed = tag, begun

    def _body(self) -> bytes:
        owner = f"process {os.getpid()} on {socket.gethostname()}"
        identity = {"token": self.token, "beat": self._beats, "owner": owner, "pid": os.getpid()}
        return json.dumps(
            identity | {"machine": machine_id(), "began": _began(os.getpid())}
        ).encode()

    def _wait_for_a_beat(self, found: tuple[bytes, str]) -> None:
        """Return when the lock was not renewed for long enough; else raise StoreError."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            time.sleep(min(1.0, PATIENCE / 10))
            now = self._bucket.find(LOCK)
            if now is None or now[1] != found[1]:
                owner = _parsed((now or found)[0]).get("owner") or "another process"
                raise StoreError(
                    f"{self._store} is being built by {owner}. Wait for it, or stop it and run "
                    "the same command again to resume"
                )


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_gone(owner: dict[str, Any]) -> bool:
    """Return whether the owner was a process of this machine that has ended."""
    if owner.get("machine") != machine_id():
        return False
    began = _began(int(owner.get("pid", 0)))
    return not began or began != owner.get("began")


def _began(pid: int) -> str:
    """Return when a process began, "" if it does not exist: process ids are reused."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
