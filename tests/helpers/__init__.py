"""Helpers of tests of several packages."""
