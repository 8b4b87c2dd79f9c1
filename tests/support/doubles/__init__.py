"""Stands in for what cannot be had here, and for time."""
