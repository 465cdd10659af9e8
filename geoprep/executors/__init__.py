"""Runs the tasks of a build: `Threads` of this process, or the workers of a `Dask` cluster."""
