"""Keeps, shows and draws benchmark reports."""
