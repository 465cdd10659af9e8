"""A run: its start, state, loop and steps, and what is shown of it."""
