"""The parts of `benchmarks.inference`: `forms` makes the files, `worker` runs one of them."""
