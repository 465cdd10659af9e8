from .callbacks import Callbacks as Callbacks
from .console import Console as Console
from .console import header as header
from .profiler import profile as profile
