"""Fault injection: damage inputs, processes, disks and requests, and check the data afterwards.

    python -m benchmarks.faults [--quick] [--seed N] [--scale X] [--only PART ...]

Each part is a module: ``killed`` (SIGKILL at random moments), ``places`` (full disks, read-only and
forbidden folders, changing sources), ``mutated`` (damaged images and labels), ``flipped`` (bits of
stores), ``objects`` (an S3 endpoint that drops, stalls, truncates and refuses requests),
``together`` (several commands on one store). All work runs in child processes (``children``);
``report`` writes docs/performance/reliability.md.
"""
