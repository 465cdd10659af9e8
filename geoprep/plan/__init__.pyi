from .label_offsets import is_certain as is_certain
from .options import BuildOptions as BuildOptions
from .options import parse_rescale as parse_rescale
from .plan import Plan as Plan
from .plan import make_plan as make_plan
from .planned_scene import PlannedScene as PlannedScene
from .probe import Probe as Probe
from .splits import TRAIN as TRAIN
