"""Makes small models."""
