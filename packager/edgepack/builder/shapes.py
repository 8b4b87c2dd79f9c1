"""Symbolic dimensions with several sizes, as TensorRT is told about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgepack.model.facts import TensorSpec
from edgepack.project.profile import Variant
from edgepack.project.project import Project, Span

TENSORRT = "TensorrtExecutionProvider"
_ENDS = ("min", "opt", "max")


def with_shape_profiles(
    variant: Variant, inputs: Sequence[TensorSpec], project: Project
) -> Variant:
    """Return the variant with TensorRT's shape profiles, where the project gives sizes for all.

    An engine is built for a range of sizes, and built again for each size outside it, which takes
    minutes. Without a size for each symbolic dimension nothing is said, and TensorRT finds out as
    inputs come. Source: onnxruntime.ai/docs/execution-providers/TensorRT-ExecutionProvider.html,
    "Explicit shape range for dynamic shape input": all three keys, every dynamic input.
    """
    spans = _spans(project)
    dynamic = [spec for spec in inputs if any(isinstance(s, str) for s in spec.shape or ("?",))]
    known = all(
        isinstance(size, int) or size in spans for spec in dynamic for size in spec.shape or ("?",)
    )
    if not dynamic or not known:
        return variant
    options = {
        f"trt_profile_{end}_shapes": ",".join(_shape(spec, spans, end) for spec in dynamic)
        for end in _ENDS
    }
    providers = [
        p.model_copy(update={"options": {**p.options, **options}}) if p.name == TENSORRT else p
        for p in variant.providers
    ]
    return variant.model_copy(update={"providers": providers})


def _spans(project: Project) -> dict[str, Span]:
    lists = {
        name: Span(min=sizes[0], opt=sizes[-1], max=sizes[-1])
        for name, sizes in project.buckets.items()
    }
    return {**project.spans, **lists}


def _shape(spec: TensorSpec, spans: Mapping[str, Span], end: str) -> str:
    sizes = [s if isinstance(s, int) else getattr(spans[s], end) for s in spec.shape or ()]
    return f"{spec.name}:{'x'.join(map(str, sizes))}"
