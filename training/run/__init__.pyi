from .capacity import release as release
from .folder import holds_run as holds_run
from .folder import refuse_others as refuse_others
from .parts import open_data as open_data
from .start import run_folder as run_folder
from .start import start_run as start_run
from .step import train_step as train_step
from .trainer import Trainer as Trainer
