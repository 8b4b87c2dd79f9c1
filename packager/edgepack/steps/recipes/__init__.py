"""Steps that change numbers, one file per recipe, and what they need."""
