"""Whether a store is what its build wrote: a store in, a report of every damaged byte out.

Face: :func:`verify`, :func:`print_report`, :class:`VerifyReport`.
"""

from geoprep.verify.report import VerifyReport, print_report, verify

__all__ = ["VerifyReport", "print_report", "verify"]
