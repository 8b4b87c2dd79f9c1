"""Sends a bundle to one device: only what it lacks. The device keeps all of it or none."""
