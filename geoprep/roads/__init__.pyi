from .centrelines import RoadRaster as RoadRaster
from .centrelines import Tracing as Tracing
from .centrelines import open_raster as open_raster
from .centrelines.pixels import ArrayPixels as ArrayPixels
from .centrelines.rasters import Kind as Kind
from .centrelines.rasters import pixel_size_of as pixel_size_of
from .formats import check_target as check_target
from .formats import read_network as read_network
from .formats import write_csv as write_csv
from .formats import write_network as write_network
from .ground import in_crs as in_crs
from .network import RoadNetwork as RoadNetwork
from .reading import read_csv as read_csv
from .reading import read_labels as read_labels
from .reading import scene_key as scene_key
from .route import check_route as check_route
from .route import find_route as find_route
from .route import write_route as write_route
from .scoring import SceneScore as SceneScore
from .scoring import ScoreSettings as ScoreSettings
from .scoring import mean_scores as mean_scores
from .scoring import pair_scenes as pair_scenes
from .scoring import score_scenes as score_scenes
from .scoring.apls import apls as apls
from .tracing import (
    blank_rasters as blank_rasters,
)
from .tracing import (
    rasters_in as rasters_in,
)
from .tracing import (
    trace as trace,
)
from .tracing import (
    vectorize as vectorize,
)
from .tracing import (
    vectorize_apart as vectorize_apart,
)
