"""Two road networks of one place, a map and a proposal: what each has and the other lacks."""
