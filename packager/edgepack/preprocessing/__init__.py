"""What tells of wrong preprocessing, and other preprocessing that may be right. Runs no model."""
