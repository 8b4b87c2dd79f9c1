"""Serves bundles over HTTP on this machine, by the code that bundles carry."""
