"""Passes the sizes of symbolic dimensions to providers that compile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgepack.backends.registry import find_backend
from edgepack.model.facts import TensorSpec
from edgepack.project.profile import Variant
from edgepack.project.project import Project, Span

_ENDS = ("min", "opt", "max")


def add_shape_profiles(variant: Variant, inputs: Sequence[TensorSpec], project: Project) -> Variant:
    """Return the variant with its backend's ``shape_options``, where the project gives all sizes.

    Without a size for each symbolic dimension the option stays unset, and the provider sees the
    sizes as inputs come.
    """
    backend = find_backend(variant)
    spans = _find_spans(project)
    dynamic = [spec for spec in inputs if any(isinstance(s, str) for s in spec.shape or ("?",))]
    known = all(
        isinstance(size, int) or size in spans for spec in dynamic for size in spec.shape or ("?",)
    )
    if not backend.shape_options or not dynamic or not known:
        return variant
    options = {
        option: ",".join(_format_shape(spec, spans, end) for spec in dynamic)
        for option, end in zip(backend.shape_options, _ENDS, strict=True)
    }
    providers = [
        p.model_copy(update={"options": {**p.options, **options}})
        if p.name == backend.provider
        else p
        for p in variant.providers
    ]
    return variant.model_copy(update={"providers": providers})


def _find_spans(project: Project) -> dict[str, Span]:
    lists = {
        name: Span(min=sizes[0], opt=sizes[-1], max=sizes[-1])
        for name, sizes in project.buckets.items()
    }
    return {**project.spans, **lists}


def _format_shape(spec: TensorSpec, spans: Mapping[str, Span], end: str) -> str:
    sizes = [s if isinstance(s, int) else getattr(spans[s], end) for s in spec.shape or ()]
    return f"{spec.name}:{'x'.join(map(str, sizes))}"
