from .comparison import compare as compare
from .metrics import chosen_threshold as chosen_threshold
from .metrics import worst_class as worst_class
from .threshold import threshold_text as threshold_text
from .validation import Evaluation as Evaluation
from .validation import evaluate_runner as evaluate_runner
from .validation import examples as examples
from .validation import validate as validate
