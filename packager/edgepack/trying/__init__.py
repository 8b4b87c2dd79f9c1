"""Trying a bundle out: what fp32 and each variant answer to the same inputs, side by side."""
