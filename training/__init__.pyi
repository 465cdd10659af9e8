from .model_functions import Model as Model
from .model_functions import evaluate_model as evaluate_model
from .model_functions import export_model as export_model
from .model_functions import load_model as load_model
from .model_functions import save_model as save_model
from .run_functions import TrainedRun as TrainedRun
from .run_functions import train as train
