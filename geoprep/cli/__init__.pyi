from .commands import cli as cli
from .entry_points import LazyCommand as LazyCommand
from .help import GroupedOption as GroupedOption
from .help import name_options as name_options
from .records import RecordCommand as RecordCommand
from .running import Status as Status
from .running import run as run

def main() -> None: ...
