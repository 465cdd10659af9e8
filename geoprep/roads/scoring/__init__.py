"""Truth and proposal by scene in, scores by scene and their mean out.

Face: :func:`scenes_of`, :func:`score_scenes`, :class:`Settings`, :func:`mean_scores`.
"""

from geoprep.roads.scoring.inputs import Pair, scenes_of
from geoprep.roads.scoring.scenes import SceneScore, Settings, mean_scores, score_scenes

__all__ = ["Pair", "SceneScore", "Settings", "mean_scores", "scenes_of", "score_scenes"]
