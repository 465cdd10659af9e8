"""Tar archives for tests."""

import io
import tarfile


def write_tar(path, members, mode="w", **options):
    """Write members, bytes by name or pairs of a name or TarInfo and bytes, as a tar."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode, **options) as tar:
        for name, data in members.items() if isinstance(members, dict) else members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            if info.isreg():
                info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path
