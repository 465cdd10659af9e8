"""An HTML page that shows all scenes of a store; ``browser`` has its HTML, CSS and JavaScript."""

from geoprep.views.page.writing import make_page

__all__ = ["make_page"]
