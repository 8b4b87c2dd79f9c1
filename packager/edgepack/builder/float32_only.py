"""Models whose arithmetic has one kind of number: trees, linear models and their like."""

from __future__ import annotations

from edgepack.model.facts import ModelFacts
from edgepack.project.profile import Variant

_DOMAIN = "ai.onnx.ml:"
_HAS_WEIGHTS = {"Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"}
_NAMED = 3


def explain_float32_only(facts: ModelFacts, variant: Variant) -> str:
    """Return why a variant's recipe has nothing to change in a model; empty where it may have.

    No operator of the domain ``ai.onnx.ml`` takes float16 or integers of 8 bits for numbers
    (ONNX's Operators-ml.md): where all weights are in such, there is nothing to make smaller.
    """
    own = [name.removeprefix(_DOMAIN) for name in facts.op_counts if name.startswith(_DOMAIN)]
    if variant.recipe == "fp32" or not own or _HAS_WEIGHTS & set(facts.op_counts):
        return ""
    more = f" and {len(own) - _NAMED} more" if len(own) > _NAMED else ""
    names = ", ".join(sorted(own)[:_NAMED]) + more
    return f"it would change nothing: the model's operators ({names}) have float32 only"
