"""Measures how much of fp32's answers a variant keeps: a metric for each kind of output."""
