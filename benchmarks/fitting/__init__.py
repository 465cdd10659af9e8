"""The parts of `benchmarks.training`, all of them runs of `training.fit` itself.

`runs` starts them; `ladder` compares settings and ranks, beside the `convolutions` alone;
`learning` says what comes of whole runs.
"""
