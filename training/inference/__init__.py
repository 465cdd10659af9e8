"""Runners of trained models, and model files that run without this package.

A runner turns uint8 windows into probabilities: `runner` has those of checkpoints; `torch_file`,
`onnx_file`, `openvino_file` and `ipex_file` write one format of model file each and run it.
`model_files` opens and writes any of them. `graph` makes the module that is exported,
`calibration` finds the layers that INT8 harms, `export_record` is what a file says about itself.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
