"""Steps that make plain what exporters leave in a model, before anything is planned."""
