"""Plans a city from a place and a seed: zones, roads with attributes, black borders.

``plan.make_plan`` makes the plan; ``frame`` has degrees and metres, ``kinds`` widths and speeds.
"""
