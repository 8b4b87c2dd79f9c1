"""Measures bundles on devices; the numbers come with a verdict on whether they may be used."""
