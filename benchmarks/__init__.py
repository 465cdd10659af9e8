"""Measurements of the packages: `python -m benchmarks.preprocess`, and its siblings.

Every benchmark takes ``--quick``, ``--json FILE`` and ``--plot FILE``, prints its tables, and runs
what it compares in turns, so that a slow minute of the machine hits all of it alike.
"""
