"""Backends: what each execution provider takes, one module each."""
