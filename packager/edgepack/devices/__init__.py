"""Devices: the inventory, how to reach a device, and what runs there."""
