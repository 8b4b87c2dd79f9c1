"""Steps that change a float graph and keep what it computes."""
