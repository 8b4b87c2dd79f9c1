"""Steps: proven file-to-file transforms, each a frozen dataclass that holds its settings."""
