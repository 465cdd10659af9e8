from .class_rasters import has_rasters as has_rasters
from .class_scores import score_rasters as score_rasters
from .polygons import polygonize_rasters as polygonize_rasters
