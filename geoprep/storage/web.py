"""Single files on web servers and on Google Cloud Storage, copied to the disk once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from geoprep.errors import SourceError
from geoprep.storage.files import replaced
from geoprep.storage.s3 import s3_address

_SCHEMES = ("http://", "https://", "gs://")


def is_web(address: str) -> bool:
    """Return whether an address is a web server's or Google's, and not S3's in its web form."""
    if not address.startswith(_SCHEMES):
        return False
    try:
        s3_address(address)
    except SourceError:
        return True
    return False


def fetch_file(address: str, path: Path) -> None:
    """Copy a file to the disk, unless the copy of an earlier run is of the same version.

    Parameters
    ----------
    address
        ``https://host/path/file`` or ``gs://bucket/path/file``.
    path
        Written whole or not at all; what tells versions apart goes into a hidden file beside it.

    Raises
    ------
    SourceError
        It cannot be reached, or is not there.
    """
    import obstore
    from obstore import exceptions

    place, _, name = address.rpartition("/")
    mark = path.with_name(f".{path.name}.version")
    try:
        meta = obstore.head(_store(place), name)
        version = json.dumps([meta.get("e_tag"), meta["size"], str(meta["last_modified"])])
        if path.is_file() and mark.is_file() and mark.read_text() == version:
            return
        with replaced(path) as partial, partial.open("wb") as file:
            for piece in obstore.get(_store(place), name).stream():
                file.write(piece)
    except (FileNotFoundError, PermissionError, ValueError, exceptions.BaseError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise SourceError(
            f"{address}: cannot be fetched ({reason}). Check the address in a browser, or download "
            "it yourself and give the file."
        ) from error
    mark.write_text(version)


def _store(place: str) -> Any:  # noqa: ANN401 - obstore's stores share no type
    from obstore.store import from_url

    if place.startswith("gs://"):
        return from_url(place, skip_signature=not _has_google_credentials())
    http = place.startswith("http://")
    return from_url(place, client_options={"allow_http": http, "connect_timeout": "10s"})


def _has_google_credentials() -> bool:
    return any(name in os.environ for name in _CREDENTIALS)


_CREDENTIALS = (
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
)
