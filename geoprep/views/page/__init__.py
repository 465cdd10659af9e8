"""A whole store as a page for a browser: a store in; one HTML file out, large ones with a folder.

Face: :func:`make_page`. ``writing`` puts the file together, ``pictures`` makes what it shows,
``records`` what it tells; the look and what it does lie in ``browser``.
"""

from geoprep.views.page.writing import make_page

__all__ = ["make_page"]
