"""Benchmarks of the packages, such as `python -m benchmarks.preprocess`.

Every benchmark takes ``--quick`` and ``--json FILE`` and prints tables. The cases
that it compares run alternately, so that a slow minute of the machine affects all of them equally.
"""
