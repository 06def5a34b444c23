"""Inspect and smoke: raw reports in, findings out. Nothing here runs anything in an image."""
