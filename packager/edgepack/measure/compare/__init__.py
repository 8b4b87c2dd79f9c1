"""Comparisons of two bundles on devices: which is slower, decided over pairs of process runs."""
