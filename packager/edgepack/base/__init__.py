"""Helpers that know no model and no device: processes, files, YAML, progress, statistics."""
