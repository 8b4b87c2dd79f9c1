"""Describes what each execution provider takes, one module per provider."""
