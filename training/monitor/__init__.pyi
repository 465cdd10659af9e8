from .callbacks import Callbacks as Callbacks
from .console import Console as Console
from .console import header as header
from .profiler import profile as profile
from .signals import RunStopped as RunStopped
from .signals import StopSignals as StopSignals
from .signals import signal_name as signal_name
