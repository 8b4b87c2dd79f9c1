"""Chooses what a quantized model keeps: ranges, methods, widths, layers in float."""
