"""Write rows of pixels to a Cloud Optimised GeoTIFF, in a way that an interrupted run can resume.

`writer.CogWriter` compresses the rows into tiles, `write_journal` records which of them are on the
disk, `directory` lays out the file. GDAL's COG driver, which exports scenes in `geoprep.views`,
cannot resume, and would decode and compress every pixel again.
"""
