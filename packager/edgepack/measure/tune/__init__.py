"""Tuning: which settings of the runtime a bundle is fastest with on a device."""
