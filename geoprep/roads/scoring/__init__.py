"""Scores of road networks against ground truth, per scene and on average: APLS and TOPO."""
