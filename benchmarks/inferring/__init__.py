"""The parts of `benchmarks.inference`: `forms` makes the files, `session` runs one of them."""
