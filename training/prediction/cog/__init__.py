"""Rows of a map in, a cloud optimised GeoTIFF out, and what a killed run needs to go on.

`writer.CogWriter` takes the rows and keeps them as compressed tiles, `journal` says which are safe,
`directory` lays out the file.
"""
