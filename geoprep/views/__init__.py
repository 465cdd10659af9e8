"""Views of stores and road networks: figures, pictures, an HTML page, GeoTIFFs and footprints.

These are the functions behind ``geoprep info``, ``preview`` and ``export``.
"""
