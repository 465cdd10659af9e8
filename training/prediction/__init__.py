"""From image to map: a GeoTIFF and a `runner.Runner` in, a GeoTIFF of roads and speeds out.

`job` has many images, `mapping` one: `images` and `reader` give rows of windows (`windows`), a
runner of `runner` their probabilities, `blend` the bytes of the map, `cog` the file.
"""
