"""Writes int8 and 4-bit models: grids, dialects, rules per operator, Q/DQ nodes."""
