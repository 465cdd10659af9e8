"""Write rows to a Cloud Optimised GeoTIFF, so that an interrupted run can resume.

GDAL's COG driver cannot resume, and would decode and compress every pixel again.
"""
