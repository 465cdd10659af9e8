"""What the server of children imports once, so that each of them costs a fraction of a second.

Imports alone: whoever forks a process that has worked gets threads that do not run.
"""

import zarrs  # noqa: F401 - all of this for those who come after

import training.fit
import training.predict  # noqa: F401
