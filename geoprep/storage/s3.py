"""S3 as people meet it: addresses, settings in the environment, and refusals in words.

Endpoint, region and credentials come from the standard ``AWS_*`` environment variables. Requests
are unsigned for the public SpaceNet bucket, and wherever no credentials are set: an unsigned
request to a private bucket fails at once, looking for credentials nobody has takes seconds.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from geoprep.errors import GeoprepError, OutputError, SourceError

PUBLIC_BUCKETS = ("spacenet-dataset",)
"""Buckets that anybody may read, and whose requests are never signed."""
_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_FALSE = ("0", "false", "no", "off")


def is_remote(address: str) -> bool:
    """Return whether an address is an object's, not a file's."""
    return address.startswith(("s3://", "http://", "https://"))


def s3_address(address: str) -> str:
    """Return ``s3://bucket/key`` for an S3 address in any of its usual web forms.

    Raises
    ------
    SourceError
        A web address that is not S3's.
    """
    if address.startswith("s3://"):
        return address
    url = urlsplit(address)
    host, path = url.netloc, url.path.lstrip("/")
    if match := re.fullmatch(r"(.+)\.s3[.-](?:[a-z0-9-]+\.)?amazonaws\.com", host):
        return f"s3://{match[1]}/{path}"
    if re.fullmatch(r"s3[.-](?:[a-z0-9-]+\.)?amazonaws\.com", host):
        return f"s3://{path}"
    raise SourceError(
        f"{address}: only S3 is read over the network. Download it first, or for another object "
        "store give s3://BUCKET/PREFIX and set AWS_ENDPOINT_URL."
    )


def split_address(address: str) -> tuple[str, str]:
    """Return bucket and key of an S3 address, or raise SourceError."""
    bucket, _, key = s3_address(address).removeprefix("s3://").partition("/")
    if not bucket:
        raise SourceError(f"{address}: no bucket in it; give s3://BUCKET/PREFIX.")
    return bucket, key


def endpoint() -> str | None:
    """Return the address of the server to be asked instead of Amazon's, or None."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def is_unsigned(bucket: str) -> bool:
    """Return whether requests to a bucket go without credentials."""
    if bucket in PUBLIC_BUCKETS:
        return True
    wish = os.environ.get("AWS_SKIP_SIGNATURE")
    if wish is not None:
        return wish.lower() not in _FALSE
    return not any(os.environ.get(name) for name in _CREDENTIALS)


@contextmanager
def errors_named(address: str, kind: type[GeoprepError] = SourceError) -> Iterator[None]:
    """Turn what a server refuses into one line that names the address and the fix.

    Parameters
    ----------
    address
        Of what is read or written inside.
    kind
        SourceError where it is read, OutputError where it is written.
    """
    from obstore import exceptions

    try:
        yield
    except (FileNotFoundError, PermissionError, exceptions.BaseError) as error:
        words = explain(error, writing_to=address if kind is OutputError else "")
        raise kind(f"{address}: {words}") from error


def _where() -> str:
    place = endpoint()
    if place:
        return f"Check the network and the endpoint {place} (AWS_ENDPOINT_URL)"
    return "Check the network, set AWS_ENDPOINT_URL for a bucket that is not Amazon's"


def _status(error: Exception) -> tuple[str, str]:
    """Return the HTTP status, "" where there is none, and the first line of an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    match = re.search(r"status code: (\d{3})", reason)
    return match[1] if match else "", _plain(reason)[:300]


def _plain(reason: str) -> str:
    """Return a client's error without the story of its retries: who did not do what."""
    told = re.search(r"Error performing \w+ (\w+://[^/\s]+)\S* in .*? - (.*)", reason)
    if told is None:
        return re.sub(r"^Generic S3 error: ", "", reason)
    if "error sending request" in told[2]:
        return f"no answer from {told[1]}"
    return f"{told[1]}: {told[2]}"


def explain(error: Exception, *, writing_to: str = "") -> str:
    """Return what went wrong and what to do about it; a listing tells its status in words only.

    Parameters
    ----------
    writing_to
        Address that was written to; "" where something was read.
    """
    status, reason = _status(error)
    if status == "404" or isinstance(error, FileNotFoundError):
        if writing_to:
            bucket = split_address(writing_to)[0]
            return f"no such bucket. Check its name, or make it: aws s3 mb s3://{bucket}"
        return (
            "no such object or bucket. Check the address; "
            "`aws s3 ls --no-sign-request` lists a public folder."
        )
    if status in ("401", "403") or isinstance(error, PermissionError):
        if writing_to:
            return (
                "writing is refused. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of somebody "
                "who may put, get, list and delete objects there (AWS_SKIP_SIGNATURE=false uses "
                "the machine's own role)"
            )
        return (
            "access refused. For a private bucket set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
            "(AWS_SKIP_SIGNATURE=false uses the machine's own role); an object that does not exist "
            "in a bucket that may not be listed is refused too."
        )
    if "Missing" in reason:
        return f"half of the credentials are not set ({reason}): set or unset all AWS_* of them."
    if "region" in reason:
        return f"the bucket is in another region ({reason}): set AWS_REGION."
    if writing_to:
        return f"not writable ({reason}). {_where()}, and run the same command again to carry on"
    return f"not readable ({reason}). {_where()}, or download the files and give their folder."
