"""Whether labels are masks or vectors, and the options are those for what they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from geoprep.errors import UsageError
from geoprep.labels import is_mask_georeferenced, mask_values
from geoprep.plan.options import BuildOptions
from geoprep.sources import IMAGE_SUFFIXES, LABEL_SUFFIXES, Found


def check_kinds(found: Sequence[Found], options: BuildOptions) -> None:
    """Refuse masks of which nobody said what is road, and options for masks beside vectors.

    Raises
    ------
    UsageError
        Naming a label and the option that is missing, or too much.
    LabelError
        Such a mask cannot be read.
    """
    labels = [scene.label for one in found for scene in one.scenes if scene.label is not None]
    labels += [one.road_file for one in found if one.road_file is not None]
    masks = [label for label in labels if _suffix(label) in IMAGE_SUFFIXES]
    vectors = [label for label in labels if _suffix(label) in (*LABEL_SUFFIXES, ".json")]
    if masks and options.mask_rule is None:
        raise UsageError(
            f"{masks[0]} is a mask: say which of its values are road, for example --label-values "
            f"255 (it holds {mask_values(masks[0])}), or what speeds they are with --label-speeds"
        )
    if len(masks) > 1 and len(set(masks)) == 1 and not is_mask_georeferenced(masks[0]):
        raise UsageError(
            f"{masks[0]} is the mask of {len(masks)} images, and is not georeferenced: "
            "give it a georeference, or --labels a folder or a quoted pattern of one mask per image"
        )
    if vectors and options.mask_rule is not None:
        raise UsageError(
            f"{vectors[0]} holds lines or areas, no pixels: leave out --label-values and "
            "--label-speeds, or build the masks' store apart"
        )


def _suffix(label: str) -> str:
    return PurePosixPath(label).suffix.lower()
