"""Names errors of disks, buckets and web servers: a line with the place, reason and fix."""

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from geoprep.errors import GeoprepError, OutputError, StoreError, UsageError
from geoprep.storage.addresses import bucket_and_key, is_s3, is_web
from geoprep.storage.clients import CutShortError, endpoint, is_unsigned

_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG),
    *(errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOENT),
)
_NEARLY_FULL = 1 << 20
"""Free bytes below which a failed write without a reason is taken for a full disk."""


@contextmanager
def errors_named(place: str | Path, failure: type[GeoprepError]) -> Iterator[None]:
    """Turn errors of a disk or a server into one line that names the place and the fix.

    ``failure`` is SourceError or StoreError for reading, OutputError for writing. A local path that
    may not be written to is a UsageError.
    """
    try:
        yield
    except GeoprepError:
        raise
    except Exception as error:
        named = _named(str(place), failure, error)
        if named is None:
            raise
        raise named from error


def _named(place: str, failure: type[GeoprepError], error: Exception) -> GeoprepError | None:
    """Return the error to raise instead, None for errors that are not about bytes."""
    if failure is OutputError and "://" not in place:
        return _unwritten(Path(place), error)
    ours = isinstance(error, OSError | CutShortError) or type(error).__module__.startswith(
        "obstore"
    )
    if not (ours or (is_web(place) and isinstance(error, ValueError))):  # an address like a//b
        return None
    if failure is StoreError and isinstance(error, FileNotFoundError):
        return failure(f"{place} is missing: check the path, or copy the file again")
    if is_s3(place):
        return failure(f"{place}: {_of_s3(error, place if failure is OutputError else '')}")
    reason = _status(error)[1]
    if failure is StoreError or not is_web(place):
        return failure(f"{place} cannot be read ({reason}): check the path or the address")
    return failure(
        f"{place}: cannot be downloaded ({reason}). Check the address in a browser, or download "
        "the file yourself and give its path."
    )


def _unwritten(path: Path, error: Exception) -> GeoprepError | None:
    code = error.errno if isinstance(error, OSError) else None
    if code in _REFUSED:
        reason = os.strerror(code)
        return UsageError(f"{path} cannot be written ({reason}): choose another place")
    # GDAL does not report a full disk as the reason.
    if code in _FULL or (code is None and free_bytes(path) < _NEARLY_FULL):
        return OutputError(
            f"{path} cannot be written: no space left on the disk. Free some, or choose another "
            "place, and run the same command again"
        )
    if isinstance(error, OSError):
        return OutputError(
            f"{path} cannot be written ({error}): check the disk, or choose another place"
        )
    return None


def free_bytes(path: Path) -> int:
    """Return the free bytes on the disk of a file or folder, which need not exist."""
    path = path.resolve()
    return shutil.disk_usage(
        next(folder for folder in (path, *path.parents) if folder.is_dir())
    ).free


def _status(error: Exception) -> tuple[str, str]:
    """Return the HTTP status, "" where there is none, and the first line of an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    match = re.search(r"status code: (\d{3})", reason)
    return match[1] if match else "", _plain(reason)[:300]


def _plain(reason: str) -> str:
    """Return a client's error without its account of the retries."""
    match = re.search(r"Error performing \w+ (\w+://[^/\s]+)\S* in .*? - (.*)", reason)
    if match is None:
        return re.sub(r"^Generic (S3|HTTP) error: ", "", reason)
    if "error sending request" in match[2]:
        return f"no answer from {match[1]}"
    return f"{match[1]}: {match[2]}"


def _of_s3(error: Exception, writing_to: str) -> str:
    """Return what went wrong and how to fix it; ``writing_to`` is "" if something was read."""
    status, reason = _status(error)
    # The errors of a listing give the status in words only.
    if status == "404" or isinstance(error, FileNotFoundError):
        if writing_to and "NoSuchBucket" in str(error):
            bucket = bucket_and_key(writing_to)[0]
            return f"no such bucket. Check its name, or create it: aws s3 mb s3://{bucket}"
        return (
            "no such object or bucket. Check the address; "
            "`aws s3 ls --no-sign-request` lists a public folder."
        )
    if status in ("401", "403") or isinstance(error, PermissionError):
        return _refusal(writing_to)
    if "Missing" in reason:
        return f"half of the credentials are not set ({reason}): set or unset all AWS_* of them."
    if "region" in reason:
        return f"the bucket is in another region ({reason}): set AWS_REGION."
    server = endpoint()
    check = (
        f"Check the network and the endpoint {server} (AWS_ENDPOINT_URL)"
        if server
        else "Check the network, or set AWS_ENDPOINT_URL for a bucket that is not Amazon's"
    )
    kind = "writable" if writing_to else "readable"
    return f"not {kind} ({reason}). {check}, and run the same command again"


def _refusal(writing_to: str) -> str:
    rights = "put, get, list and delete objects" if writing_to else "get the object"
    keyless = writing_to and is_unsigned(bucket_and_key(writing_to)[0])
    refused = "access refused without credentials" if keyless else "access refused"
    return (
        f"{refused}. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of a user who "
        f"may {rights} there (AWS_SKIP_SIGNATURE=false uses the machine's own role)"
    )
