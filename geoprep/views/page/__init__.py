"""An HTML page that shows all scenes of a store.

``writing`` writes the page, ``pictures`` encodes its images, ``records`` collects its data, and
``browser`` holds its HTML, CSS and JavaScript.
"""

from geoprep.views.page.writing import make_page

__all__ = ["make_page"]
