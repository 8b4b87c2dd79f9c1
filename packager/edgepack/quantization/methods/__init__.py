"""Ways to lose less in int8, one file each."""
