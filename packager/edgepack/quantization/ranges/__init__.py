"""What the tensors of a model hold over samples, collected in one pass and bounded memory."""
