"""Sends a bundle to one device: only what it lacks, and it keeps all of it or none."""
