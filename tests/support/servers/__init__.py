"""Starts real servers and boards for tests."""
