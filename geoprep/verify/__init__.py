"""Checks of a store: a store in, a report of every damaged byte out."""
