"""Builds: scenes and options to a plan, and a plan and an executor to a finished store.

Interrupted builds are resumed.
"""
