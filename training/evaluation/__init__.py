"""Decoding of probabilities, thresholds, metrics and evaluations of models."""
