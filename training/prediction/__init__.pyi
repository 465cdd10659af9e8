from .instances import run_instances as run_instances
from .job import open_job as open_job
from .job import predict_images as predict_images
from .predict_options import PredictOptions as PredictOptions
from .predictor import elapsed as elapsed
from .screen import Screen as Screen
from .screen import summary as summary
