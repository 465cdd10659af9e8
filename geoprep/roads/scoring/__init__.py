"""Scores of road networks against ground truth, per scene and on average: APLS and TOPO."""

from geoprep.roads.scoring.pairs import ScenePair, pair_scenes
from geoprep.roads.scoring.scenes import SceneScore, ScoreSettings, mean_scores, score_scenes

__all__ = [
    "ScenePair",
    "SceneScore",
    "ScoreSettings",
    "mean_scores",
    "pair_scenes",
    "score_scenes",
]
