"""Samples: from the user's files and functions to sets on disk that any process can read."""
