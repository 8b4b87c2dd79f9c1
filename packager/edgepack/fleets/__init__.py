"""Bundles in the forms of fleet managers: packages, artifacts and archives, each with its hook."""
