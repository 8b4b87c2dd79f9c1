"""Selects the devices of a fleet, orders them, and keeps pushes to many of them as rollouts."""
