"""Carry out a plan: a plan and an executor in, a finished store and a summary out.

Face: :func:`build`, :class:`Summary`; :func:`rehearse` says beforehand what
a build would take. Interrupted builds are taken up where they were.
"""

from geoprep.build.rehearsal import Rehearsal, rehearse
from geoprep.build.run import build
from geoprep.build.summary import Summary

__all__ = ["Rehearsal", "Summary", "build", "rehearse"]
