"""Runners of trained models, uint8 windows in and probabilities out, and files of all formats."""
