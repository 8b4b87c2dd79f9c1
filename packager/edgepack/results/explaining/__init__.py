"""Explains why a run takes as long as it does: rooflines, bottlenecks, remedies with their gain."""
