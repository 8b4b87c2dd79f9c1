"""What is not proven about a variant: inputs that break it, faults that goldens do not detect."""

from __future__ import annotations

from collections.abc import Iterator

from edgepack.base.schema import NotMeasured
from edgepack.quantization.search.outside import BrokenOutput
from edgepack.records.run import RunReport, VariantFacts


def find_broken_outputs(variant: VariantFacts) -> list[BrokenOutput]:
    """Return what inputs unlike the samples break, the farthest first."""
    found = [] if isinstance(variant.outside, NotMeasured) else variant.outside
    return [BrokenOutput(**each.model_dump()) for each in found]


def format_ranges(variant: VariantFacts) -> list[str]:
    """Return the values that a variant's inputs were calibrated with."""
    return [
        f"{name!r} from {low:.4g} to {high:.4g}"
        for name, (low, high) in variant.input_ranges.items()
    ]


def list_unshown_rows(report: RunReport) -> Iterator[tuple[str, str]]:
    """Yield what nothing has shown of the variant that ran, for a table of two columns."""
    for variant in (each for each in report.variants if each.id == report.variant_used):
        if isinstance(variant.outside, NotMeasured):
            yield "unlike the samples", f"not measured: {variant.outside.reason}"
        yield from (("unlike the samples", str(each)) for each in find_broken_outputs(variant))
        yield from (("goldens do not tell", what) for what in variant.untold)
