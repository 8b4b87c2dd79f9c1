"""Bundles in the forms of fleet managers: Debian packages, Mender artifacts, RAUC bundles."""
