"""Makes the Python environment that bundles run in; the device needs no internet."""
