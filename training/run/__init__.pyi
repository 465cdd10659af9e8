from .capacity import release as release
from .folder import holds_run as holds_run
from .start import run_folder as run_folder
from .start import start_run as start_run
from .state import BatchGroup as BatchGroup
from .state import Run as Run
from .step import training_step as training_step
