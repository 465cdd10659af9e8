"""Kinds of addresses, and their parts. An address is a plain string, so that scenes can be sent.

It is a path, ``tar://OFFSET+SIZE/path/of.tar!/member`` of an uncompressed tar,
``/vsizip/{/path/of.zip}/member``, or on S3, Google Cloud Storage or a web server. All end in the
file's own name, but for the query of a web address.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from geoprep.errors import SourceError

_MEMBER = re.compile(r"tar://(\d+)\+(\d+)(/[^!]*)!/(.*)", re.DOTALL)
_ZIPPED = re.compile(r"/vsizip/\{([^}]*)\}/(.*)", re.DOTALL)


def is_remote(address: str) -> bool:
    """Return whether an address is on a server, neither a local path nor in an archive."""
    return address.startswith(("s3://", "gs://", "http://", "https://"))


def is_s3(address: str) -> bool:
    """Return whether an address is on S3, in any of its usual forms."""
    return is_remote(address) and _in_s3(address) is not None


def is_web(address: str) -> bool:
    """Return whether an address is on a web server or Google Cloud Storage, and not on S3.

    Signed addresses of S3 objects are web addresses: the signature is in their query.
    """
    return is_remote(address) and not is_s3(address)


def is_bucket(location: str | Path) -> bool:
    """Return whether the location of a store is in a bucket."""
    return str(location).startswith("s3://")


def s3_address(address: str) -> str:
    """Return ``s3://bucket/key`` for S3 addresses of any form; raise SourceError for others."""
    in_s3 = _in_s3(address)
    if in_s3 is None:
        raise SourceError(
            f"{address}: only S3 can be listed and read in place. Download the file first, or for "
            "another object store give s3://BUCKET/PREFIX and set AWS_ENDPOINT_URL."
        )
    return in_s3


def _in_s3(address: str) -> str | None:
    if address.startswith("s3://"):
        return address
    url = urlsplit(address)
    if url.query:
        return None
    host, path = url.netloc, unquote(url.path).lstrip("/")
    if match := re.fullmatch(r"(.+)\.s3[.-](?:[a-z0-9-]+\.)?amazonaws\.com", host):
        return f"s3://{match[1]}/{path}"
    return f"s3://{path}" if re.fullmatch(r"s3[.-](?:[a-z0-9-]+\.)?amazonaws\.com", host) else None


def s3_region(address: str) -> str:
    """Return the region that the host of a web address of S3 names, "" if it names none."""
    host = urlsplit(address).netloc
    match = re.search(r"(?:^|\.)s3[.-]([a-z]+(?:-[a-z]+)+-\d)\.amazonaws\.com$", host)
    return match[1] if match else ""


def bucket_and_key(address: str) -> tuple[str, str]:
    """Return bucket and key of an S3 address, or raise SourceError."""
    bucket, _, key = s3_address(address).removeprefix("s3://").partition("/")
    if not bucket:
        raise SourceError(f"{address}: no bucket in it; give s3://BUCKET/PREFIX.")
    return bucket, key


def web_parts(address: str) -> tuple[str, str, str]:
    """Return the server, the path of the file there in plain characters, and the query."""
    if address.startswith("gs://"):
        bucket, _, key = address.removeprefix("gs://").partition("/")
        return f"gs://{bucket}", key, ""
    url = urlsplit(address)
    return f"{url.scheme}://{url.netloc}", unquote(url.path).lstrip("/"), url.query


class Member(NamedTuple):
    """A member of an archive, by two names; of a tar with its first byte and their number."""

    archive: str
    name: str
    offset: int | None = None  # None in a zip
    size: int = 0


def member_address(archive: Path, name: str, offset: int, size: int) -> str:
    """Return the address of a member of an uncompressed tar."""
    path = str(archive.absolute()).replace("%", "%25").replace("!", "%21")
    return f"tar://{offset}+{size}{path}!/{name}"


def archive_member(address: str) -> Member | None:
    """Return the parts of an address of a member of an archive; None for others."""
    if match := _MEMBER.fullmatch(address):
        return Member(unquote(match[3]), match[4], int(match[1]), int(match[2]))
    match = _ZIPPED.fullmatch(address)
    return match and Member(match[1], match[2])


def image_in_file(address: str) -> tuple[str, str, str] | None:
    """Return the parts of GDAL's address of one image of several in a file; None for others.

    They are the text before the path of the file, the path, and the image's number or name.

    Examples
    --------
    >>> image_in_file("GTIFF_DIR:2:stack.tif"), image_in_file("netcdf:scene.nc:red")
    (('GTIFF_DIR:2:', 'stack.tif', '2'), ('netcdf:', 'scene.nc', 'red'))
    """
    if page := re.fullmatch(r"(GTIFF_DIR:(?:off:)?(\d+):)(.+)", address, re.I):
        return page[1], page[3], page[2]
    image = re.fullmatch(r"((?!tar:)[a-z][a-z0-9_]+:)(?!//)\"?([^\":]+)\"?:/*(.+)", address, re.I)
    return image and (image[1], image[2], image[3])


def is_local(address: str) -> bool:
    """Return whether an address is a path, neither in an archive nor on a server."""
    return not is_remote(address) and archive_member(address) is None


def joined(addresses: Iterable[str]) -> str:
    """Return several addresses as one text, the bands of an image."""
    return "\0".join(addresses)


def shown_address(text: str) -> str:
    """Return an address, or several `joined`, as messages show it."""
    members = [(address, archive_member(address)) for address in split_address(text)]
    return " + ".join((m and f"{m.name} in {m.archive}") or address for address, m in members)


def is_file_name(text: str) -> bool:
    """Return whether a text can name a file in a folder, and none outside of it."""
    return text not in ("", ".", "..") and not {*text} & {"/", "\0"}


def split_address(text: str) -> list[str]:
    """Return the addresses of a text from `joined`, or of a single address."""
    return text.split("\0")
