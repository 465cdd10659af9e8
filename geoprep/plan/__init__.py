"""Every choice of a build, before a pixel is read: scenes and options in, tiles and shards out.

Face: :class:`BuildOptions`, :func:`make_plan`, :class:`Plan`, :func:`parse_rescale`. What reads
images is loaded on first use: the options alone are what a help text needs.
"""

from typing import TYPE_CHECKING, Any

from geoprep.plan.options import BuildOptions, parse_rescale

if TYPE_CHECKING:
    from geoprep.plan.plan import Plan, PlannedScene, make_plan

__all__ = ["BuildOptions", "Plan", "PlannedScene", "make_plan", "parse_rescale"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the module holds
    if name in __all__:
        from geoprep.plan import plan

        return getattr(plan, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
