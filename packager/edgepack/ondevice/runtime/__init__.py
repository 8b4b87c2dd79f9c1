"""What a bundle carries to run its model: the loader and what it imports."""
