"""Addresses on S3 and web servers, S3's settings in the environment, and errors in plain words.

Endpoint, region and credentials come from the standard ``AWS_*`` environment variables. Requests
are unsigned for the public SpaceNet bucket, and wherever no credentials are set: an unsigned
request to a private bucket fails at once, while a search for credentials takes seconds.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from geoprep.errors import GeoprepError, OutputError, SourceError

PUBLIC_BUCKETS = ("spacenet-dataset",)
"""Buckets with public read access, whose requests are never signed."""
_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_FALSE = ("0", "false", "no", "off")


def is_remote(address: str) -> bool:
    """Return whether an address is on S3 or a web server, not a local path."""
    return address.startswith(("s3://", "http://", "https://"))


def is_web(address: str) -> bool:
    """Return whether an address is on a web server or Google Cloud Storage, and not on S3."""
    if not address.startswith(("http://", "https://", "gs://")):
        return False
    try:
        s3_address(address)
    except SourceError:
        return True
    return False


def s3_address(address: str) -> str:
    """Return ``s3://bucket/key`` for an S3 address in any of its usual web forms.

    Raises
    ------
    SourceError
        A web address that does not belong to S3.
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
        f"{address}: only S3 can be listed and read in place. Download the file first, or for "
        "another object store give s3://BUCKET/PREFIX and set AWS_ENDPOINT_URL."
    )


def split_address(address: str) -> tuple[str, str]:
    """Return bucket and key of an S3 address, or raise SourceError."""
    bucket, _, key = s3_address(address).removeprefix("s3://").partition("/")
    if not bucket:
        raise SourceError(f"{address}: no bucket in it; give s3://BUCKET/PREFIX.")
    return bucket, key


def endpoint() -> str | None:
    """Return the address of the S3 server, None for Amazon's."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def is_unsigned(bucket: str) -> bool:
    """Return whether requests to a bucket go without credentials."""
    if bucket in PUBLIC_BUCKETS:
        return True
    skip = os.environ.get("AWS_SKIP_SIGNATURE")
    if skip is not None:
        return skip.lower() not in _FALSE
    return not any(os.environ.get(name) for name in _CREDENTIALS)


@contextmanager
def errors_named(address: str, kind: type[GeoprepError] = SourceError) -> Iterator[None]:
    """Turn errors of a server into one line that names the address and the fix.

    Parameters
    ----------
    address
        Address that is read or written inside the block.
    kind
        SourceError for reading, OutputError for writing.
    """
    from obstore import exceptions

    try:
        yield
    except (FileNotFoundError, PermissionError, ValueError, exceptions.BaseError) as error:
        if is_web(address):
            raise kind(f"{address}: {_explain_web(error)}") from error
        if isinstance(error, ValueError) and not isinstance(error, exceptions.BaseError):
            raise
        writing_to = address if kind is OutputError else ""
        raise kind(f"{address}: {explain(error, writing_to=writing_to)}") from error


def _where() -> str:
    place = endpoint()
    if place:
        return f"Check the network and the endpoint {place} (AWS_ENDPOINT_URL)"
    return "Check the network, or set AWS_ENDPOINT_URL for a bucket that is not Amazon's"


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


def _explain_web(error: Exception) -> str:
    reason = _status(error)[1]
    return (
        f"cannot be downloaded ({reason}). Check the address in a browser, or download the file "
        "yourself and give its path."
    )


def explain(error: Exception, *, writing_to: str = "") -> str:
    """Return what went wrong on S3 and how to fix it.

    Parameters
    ----------
    writing_to
        Address that was written to; "" if something was read.
    """
    status, reason = _status(error)
    # The errors of a listing give the status in words only.
    if status == "404" or isinstance(error, FileNotFoundError):
        if writing_to and "NoSuchBucket" in str(error):
            bucket = split_address(writing_to)[0]
            return f"no such bucket. Check its name, or create it: aws s3 mb s3://{bucket}"
        if writing_to:
            return "no such object. Check the address, and run the same command again."
        return (
            "no such object or bucket. Check the address; "
            "`aws s3 ls --no-sign-request` lists a public folder."
        )
    if status in ("401", "403") or isinstance(error, PermissionError):
        return _explain_refusal(writing_to)
    if "Missing" in reason:
        return f"half of the credentials are not set ({reason}): set or unset all AWS_* of them."
    if "region" in reason:
        return f"the bucket is in another region ({reason}): set AWS_REGION."
    kind = "writable" if writing_to else "readable"
    return f"not {kind} ({reason}). {_where()}, and run the same command again"


def _explain_refusal(writing_to: str) -> str:
    if not writing_to:
        return (
            "access refused. For a private bucket set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
            "(AWS_SKIP_SIGNATURE=false uses the machine's own role); an object that does not exist "
            "in a bucket that may not be listed is refused too."
        )
    if is_unsigned(split_address(writing_to)[0]):
        return (
            "access refused without credentials. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
            "of a user who may put, get, list and delete objects there (AWS_SKIP_SIGNATURE=false "
            "uses the machine's own role)"
        )
    key = os.environ.get("AWS_ACCESS_KEY_ID")
    user = f"the key AWS_ACCESS_KEY_ID={key}" if key else "this machine's role"
    return (
        f"access refused: {user} lacks a permission. A build needs to put, get, list and delete "
        "objects there (s3:PutObject, s3:GetObject, s3:ListBucket, s3:DeleteObject). Use other "
        "keys, or another bucket"
    )
