"""Converts models of other frameworks to ONNX, each in an environment of its own, and runs them."""
