"""``edgepack evaluate``: the project's metric, through the device's own provider."""
