"""What goes wrong on real machines, done on purpose, and what then became of the data.

    python -m benchmarks.faults [--quick] [--seed N] [--scale X] [--only PART ...]

A part is a file: ``killed`` (SIGKILL at random moments), ``places`` (full disks, read-only and
forbidden places, sources that change), ``mutated`` (damaged images and labels), ``flipped`` (bits
of stores), ``objects`` (an S3 endpoint that drops, stalls, truncates and refuses), ``together``
(several at once on one store). Everything runs in child processes (``children``); ``report``
writes the table.
"""
