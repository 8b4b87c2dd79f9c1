"""Steps that put preprocessing and tokenizers in front of a model."""
