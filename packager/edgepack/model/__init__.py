"""Models: reading them safely, their facts, and running them."""

from edgepack.model.facts import ModelFacts, TensorSpec, model_facts
from edgepack.model.finding import Finding
from edgepack.model.reading import read_model, write_model

__all__ = ["Finding", "ModelFacts", "TensorSpec", "model_facts", "read_model", "write_model"]
