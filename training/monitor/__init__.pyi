from .callbacks import Callbacks as Callbacks
from .console import Console as Console
from .console import header as header
from .pictures import ANY_ROAD_MPH as ANY_ROAD_MPH
from .pictures import (
    LEGEND_WIDTH as LEGEND_WIDTH,
)
from .pictures import (
    LINE as LINE,
)
from .pictures import Example as Example
from .pictures import class_entries as class_entries
from .pictures import (
    draw_legend as draw_legend,
)
from .pictures import (
    legend_entries as legend_entries,
)
from .profiler import profile as profile
from .signals import RunStopped as RunStopped
from .signals import StopSignals as StopSignals
from .signals import signal_name as signal_name
