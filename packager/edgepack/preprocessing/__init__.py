"""Finds signs of wrong preprocessing, and ranks what may be right instead. Runs no model."""
