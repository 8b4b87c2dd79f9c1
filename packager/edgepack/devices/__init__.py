"""Devices: the inventory, how to reach a device, and what is done there."""
