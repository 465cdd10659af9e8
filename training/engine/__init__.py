"""Device, precision, compiler, allocator, threads and ranks of training steps."""
