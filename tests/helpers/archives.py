"""Archives for tests."""

import io
import tarfile
import zipfile


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


def write_archive(path, members):
    """Write bytes by name as a zip, a tar or a gzipped tar, by the suffix; return the path."""
    if path.suffix != ".zip":
        return write_tar(path, members, "w" if path.suffix == ".tar" else "w:gz")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in members.items():
            packed.writestr(name, data)
    return path
