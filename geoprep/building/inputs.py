"""The identity of the files of a build, by which a later run knows whether they are the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from geoprep.errors import GeoprepError, SourceError
from geoprep.executors.threads import Executor, in_batches
from geoprep.imagery.headers import describe
from geoprep.labels.vector_names import vector_parts
from geoprep.storage.addresses import is_local, shown_address
from geoprep.storage.versions import content_digest, file_states, sample_digest


@dataclass(frozen=True, slots=True)
class InputFiles:
    """The files of a scene, and what they were when they were read for a plan.

    Images count by size and samples. Labels count whole: one road may be all that has changed.
    """

    addresses: tuple[str, ...]  # of the image, the image itself first, and of its label
    images: int = 1  # number of files of the image
    digest: int = 0  # of the image, of a VRT with its sources; 0: it is not known
    content: int = 0  # digest of all files, 128 bits
    state: int = 0  # their sizes and times

    @classmethod
    def read(cls, image_files: Sequence[str], label_files: Sequence[str]) -> InputFiles:
        """Return the files of an image and its label, identified."""
        files, count = (*image_files, *label_files), len(image_files)
        state = file_states(files)  # first: what is read later is at least as new
        digests = [
            _or_unreadable(sample_digest if number < count else content_digest, file)
            for number, file in enumerate(files)
        ]
        inputs = cls(files, count, content=_together(digests), state=state)
        return replace(inputs, digest=_image_digest(digests[: len(inputs.own)]))

    @property
    def own(self) -> tuple[str, ...]:
        """The files that make an image equal to another: the text of a VRT does not."""
        is_vrt = self.addresses[0].lower().endswith(".vrt")
        return self.addresses[: self.images if is_vrt else 1]

    def require_unchanged(self) -> None:
        """Raise SourceError if a file has changed since it was planned.

        If size or time differ, the content decides: copies on several machines have other times.
        """
        if file_states(self.addresses) == self.state:
            return
        now = InputFiles.read(self.addresses[: self.images], self.addresses[self.images :])
        if now.content != self.content:
            raise SourceError(
                f"{shown_address(self.addresses[0])} or its label changed while the store was "
                "built. Wait until the files are complete, and build it again with `overwrite`"
            )


def label_files(label: str | None, *, raster: bool = False) -> Sequence[str]:
    """Return the files of a label; none for a scene without label."""
    if label is None:
        return []
    if not raster:
        return [str(part) for part in vector_parts(Path(label))] if is_local(label) else [label]
    try:
        return describe(label).files
    except GeoprepError:  # the build reports it with the scene
        return [label]


def with_equal_images(inputs: Sequence[InputFiles], executor: Executor) -> list[InputFiles]:
    """Return the files; images whose samples are equal have the digest of all of their bytes."""
    counts = Counter(files.digest for files in inputs)
    alike = [i for i, files in enumerate(inputs) if files.digest and counts[files.digest] > 1]
    compared = [*inputs]
    whole = in_batches(executor, _whole_digest, [inputs[i].own for i in alike])
    for i, digest in zip(alike, whole, strict=True):
        compared[i] = replace(inputs[i], digest=digest)
    return compared


def _whole_digest(files: Sequence[str]) -> int:
    return _image_digest([_or_unreadable(content_digest, file) for file in files])


def inputs_digest(
    texts: Iterable[str], inputs: Iterable[InputFiles], shared: Iterable[str | None]
) -> str:
    """Return a digest of all inputs. Paths and times do not count.

    ``texts`` count in addition to the files of the scenes and the ``shared`` ones.
    """
    contents = [files.content for files in inputs]
    contents += [
        _together([_or_unreadable(content_digest, file) for file in label_files(name)])
        for name in shared
        if name
    ]
    lines = *texts, *(f"{content:032x}" for content in contents)
    return xxhash.xxh3_128_hexdigest("\n".join(lines).encode())


def _or_unreadable(digest: Callable[[str], str], file: str) -> str:
    try:
        return digest(file)
    except SourceError:
        return "unreadable"


def _image_digest(digests: Sequence[str]) -> int:
    unknown = digests[0] == "unreadable"
    return 0 if unknown else xxhash.xxh3_64_intdigest(" ".join(digests).encode())


def _together(digests: Sequence[str]) -> int:
    return xxhash.xxh3_128_intdigest(" ".join(digests).encode())
