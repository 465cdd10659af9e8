"""A trained network as a file of its own, which runs without this package.

`graph` makes a network that takes bytes and gives probabilities, `calibration` reads the tiles that
INT8 takes its ranges from and finds the layers that it harms. `torch_file`, `onnx_file`,
`openvino_file` and `ipex_file` each know one format, how it is written and how it runs; `record` is
what every file says about itself. `opening` knows them all, `comparison` sets several side by side.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
