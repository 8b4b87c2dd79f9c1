"""What a bundle carries to be measured: the harness, its load and its sensors."""
