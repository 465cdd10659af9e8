"""Scores of road networks against ground truth, per scene and on average: APLS and TOPO."""

from geoprep.roads.scoring.pairs import ScenePair, pair_scenes
from geoprep.roads.scoring.scenes import (
    Reliability,
    SceneScore,
    mean_scores,
    reliability,
    score_scenes,
)

__all__ = [
    "Reliability",
    "ScenePair",
    "SceneScore",
    "mean_scores",
    "pair_scenes",
    "reliability",
    "score_scenes",
]
