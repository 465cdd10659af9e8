"""Tasks of a build that end their process at one scene, as a crash of GDAL does."""

import os
import signal

from geoprep.building import scene, shard, survey
from geoprep.building.records import ShardRecord, ShardTask
from geoprep.building.scene import PlannedScene
from geoprep.building.survey import SurveyRecord, SurveyTask

SCENE = "quay_3.tif"


def _deadly(task: ShardTask) -> None:
    if any(part.scene.image.endswith(SCENE) and part.surveyed is None for part in task.parts):
        os.kill(os.getpid(), signal.SIGKILL)


_probe_scene, _survey_rows = scene.probe_scene, survey.survey_rows


def probe_scene(item: scene.Probed) -> PlannedScene:
    """Open an image, or die."""
    if item[0].image.endswith(SCENE) and not item[0].failure:
        os.kill(os.getpid(), signal.SIGKILL)
    return _probe_scene(item)


def survey_rows(task: SurveyTask) -> SurveyRecord:
    """Survey rows of a scene, or die."""
    if task.scene.image.endswith(SCENE) and not task.failure:
        os.kill(os.getpid(), signal.SIGKILL)
    return _survey_rows(task)


def build_shard(task: ShardTask) -> ShardRecord:
    """Build a shard, or die."""
    _deadly(task)
    return shard.build_shard(task)


def try_scenes(task: ShardTask) -> None:
    """Render scenes, or die."""
    _deadly(task)
    shard.try_scenes(task)
