"""Decides which variants carry a model that is quantized or float16 already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgepack.bundle.unused import Stage, Unused
from edgepack.model.quantized import Quantization
from edgepack.project.profile import Dialect, Variant


@dataclass(frozen=True)
class Carrying:
    """What becomes of a target's variants with a model that is quantized or float16 already.

    Such a model is not changed. The int8-static variants of its dialect carry it, or the fp16
    variants if it is float16, and otherwise the fp32 variants, because that recipe does not change
    numbers.
    """

    quantization: Quantization

    def find_unused(self, variants: Sequence[Variant]) -> dict[str, Unused]:
        """Return the variants that do not carry the model, by id."""
        carriers = {variant.id: variant for variant in variants if self._can_carry(variant)}
        speaking = {v.backend: v.id for v in carriers.values() if v.recipe != "fp32"}
        doubles = {
            variant.id: speaking[variant.backend]
            for variant in carriers.values()
            if variant.recipe == "fp32" and variant.backend in speaking
        }
        others = ", ".join(name for name in carriers if name not in doubles)
        there = f"; carried as it is by {others}" if others else ""
        found = {}
        stage: Stage
        for variant in variants:
            if variant.id in doubles:
                stage, reason = "left out", f"it would be the same model as {doubles[variant.id]}"
            elif variant.id not in carriers:
                stage, reason = "refused", f"{self._explain_obstacle(variant)}{there}"
            else:
                continue
            found[variant.id] = Unused(
                variant=variant.id, stage=stage, reason=reason, hint="give the float model"
            )
        return found

    def _can_carry(self, variant: Variant) -> bool:
        if variant.recipe == "int8-static" and variant.dialect is not None:
            return self.quantization.form == "QDQ" and not self._list_differences(variant.dialect)
        if variant.recipe == "fp16":
            return self.quantization.form == "float16"
        return variant.recipe == "fp32"

    def _explain_obstacle(self, variant: Variant) -> str:
        found = f"the model is {self.quantization.state}"
        if self.quantization.form == "float16":
            return f"{found}, and {variant.recipe} is made from float32"
        if variant.recipe == "int8-static" and variant.dialect is not None:
            if self.quantization.form != "QDQ":
                return f"{found}, and {variant.backend} wants int8 as QDQ"
            wanted = ", ".join(self._list_differences(variant.dialect))
            return f"{found}, and {variant.backend} wants {wanted}"
        return f"{found}, which {variant.recipe} would change"

    def _list_differences(self, dialect: Dialect) -> list[str]:
        """Return what the dialect needs and the model lacks."""
        found = self.quantization
        wanted = []
        if found.activations != (dialect.activations,) or (
            dialect.symmetric and not found.symmetric
        ):
            symmetric = "symmetric " if dialect.symmetric else ""
            wanted.append(f"{symmetric}{dialect.activations} activations")
        if found.weights not in ((), (dialect.weights,)):
            wanted.append(f"{dialect.weights} weights")
        if found.shifted_weights:
            wanted.append("weights with zero point 0")
        if found.per_channel and not dialect.per_channel:
            wanted.append("one scale for all channels of a weight")
        return wanted
