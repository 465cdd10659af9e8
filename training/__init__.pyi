from .api import Model as Model
from .api import TrainedRun as TrainedRun
from .api import evaluate_model as evaluate_model
from .api import export_model as export_model
from .api import load_model as load_model
from .api import pretrain_model as pretrain_model
from .api import save_model as save_model
from .api import train as train
