"""Shortest distances along a road network, between points on its edges."""

from geoprep.roads.paths.distances import CostGraph, Weight, cost_graph, point_distances
from geoprep.roads.paths.points import EdgePoints, nearest_points, node_points, spaced_points

__all__ = [
    "CostGraph",
    "EdgePoints",
    "Weight",
    "cost_graph",
    "nearest_points",
    "node_points",
    "point_distances",
    "spaced_points",
]
