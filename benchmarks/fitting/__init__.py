"""The parts of `benchmarks.training`.

`rungs` says what is compared, `stepper` takes the steps of `training.fit` and `worker` runs it in
a process of its own, since an allocator is chosen once per process; `ladder`, `mapping` and `runs`
ask for it and record the figures, `report` shows them.
"""
