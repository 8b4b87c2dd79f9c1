"""Collects the values of a model's tensors over samples, in one pass and bounded memory."""
