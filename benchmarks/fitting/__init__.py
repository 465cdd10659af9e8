"""Parts of `benchmarks.training`, which all run `training.fit`.

`runs` starts the runs; `ladder` compares settings and numbers of processes with the rate of the
`convolutions` alone; `learning` measures the accuracy of complete runs.
"""
