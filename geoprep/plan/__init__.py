"""Every choice of a build, before a pixel is read: scenes and options in, tiles and shards out.

Face: :class:`BuildOptions`, :func:`make_plan`, :class:`Plan`, :func:`parse_rescale`.
"""

from geoprep.plan.options import BuildOptions, parse_rescale
from geoprep.plan.plan import Plan, PlannedScene, make_plan

__all__ = ["BuildOptions", "Plan", "PlannedScene", "make_plan", "parse_rescale"]
