"""What the city is: a place and a seed in; zones, roads with attributes, black borders out.

Its face is ``plan.make_plan``; ``frame`` knows degrees and metres, ``kinds`` widths and speeds.
"""
