from .options import BuildOptions as BuildOptions
from .options import Choice as Choice
from .options import Schema as Schema
from .options import parse_rescale as parse_rescale
from .plan import Plan as Plan
from .plan import PlannedScene as PlannedScene
from .plan import make_plan as make_plan
from .probe import Probe as Probe
