"""Fleets: which devices, in what order, and pushes to many of them that are kept as rollouts."""
