"""Shortest distances along a road network, between points on its edges."""
