"""Models: reading them safely, their facts, and running them."""
