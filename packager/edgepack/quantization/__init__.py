"""From a float model and the statistics of its tensors to integers: dialects, QDQ, rounding."""
