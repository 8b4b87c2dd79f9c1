"""Measures bundles on devices: bench, evaluate, compare, tune, and phones."""
