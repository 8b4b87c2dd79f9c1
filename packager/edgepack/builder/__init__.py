"""``edgepack build``: from a model or project to proven bundles."""
