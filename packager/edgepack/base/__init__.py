"""Ground that knows no model and no device: processes, files, YAML, progress, statistics."""
