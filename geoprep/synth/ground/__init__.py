"""What there is to draw in a box: a plan in; shapes of a material at a height out.

Its face is ``world.World``; ``spectra`` says what materials reflect.
"""
