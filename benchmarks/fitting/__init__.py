"""The parts of `benchmarks.training`.

`rungs` says what is compared, `stepper` carries it out and `worker` runs it in a process of its
own, since an allocator is chosen once a process; `climb`, `sweeps`, `mapping`, `ranks`
and `learning` ask for it and record the figures, `report` shows them.
"""
