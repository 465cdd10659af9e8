"""A trained network as a file of its own, which runs without this package.

`export` writes one: `folding` and `graph` make a network that takes bytes and gives
probabilities, `calibration` reads the tiles that INT8 takes its ranges from. `torch_file`,
`onnx_file` and `openvino_file` each know one format, how it is written and how it runs; `record`
is what every file says about itself. `opening` takes any file and returns its runner.
"""
