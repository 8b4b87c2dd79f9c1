"""Measures bundles in browsers, in a page that this machine serves."""
