"""Runners of trained models, uint8 windows in and probabilities out, and files of all formats."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
