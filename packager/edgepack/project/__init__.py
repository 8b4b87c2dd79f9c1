"""What users write, as types: ``edgepack.yaml``, profiles of targets, and their grades."""
