"""The public functions of geoprep, and the objects that they return.

``import geoprep as gp`` offers the same names. Each command of the command line has its function.
"""
