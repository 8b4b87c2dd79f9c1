"""Bundles: a directory with a manifest, and its deterministic archive."""
