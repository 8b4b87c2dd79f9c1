"""``edgepack device stats``: what bundles have counted on a device."""

from __future__ import annotations

from typing import Annotated

import typer

from edgepack import api
from edgepack.cli.options import JsonOption
from edgepack.cli.rollouts import ParallelOption
from edgepack.cli.several import NamesArgument, do_on_chosen


def show_stats(
    names: NamesArgument,
    project: Annotated[
        str | None, typer.Option(help="Only this project [default: all]", show_default=False)
    ] = None,
    folder: Annotated[
        str | None,
        typer.Option(
            help="EDGEPACK_STATS of the programs there [default: 'stats' in the device's root]",
            show_default=False,
        ),
    ] = None,
    parallel: ParallelOption = 16,
    as_json: JsonOption = False,
) -> None:
    """Show what bundles have counted on a device: inferences, times, errors, inputs out of range.

    Programs count that are started with EDGEPACK_STATS=FOLDER.
    """
    do_on_chosen(
        names,
        lambda device, _progress: api.read_stats(device, project, folder),
        show=_print_stats,
        summarize=lambda stats: "; ".join(map(_format_counts, stats.counts)) or "nothing counted",
        judge=api.DeviceStats.require_readable,
        settings=api.RolloutSettings(parallel=parallel),
        as_json=as_json,
    )


def _print_stats(stats: api.DeviceStats) -> None:
    from datetime import UTC, datetime

    from edgepack.cli.printing import print_rows, write_line

    if not stats.counts:
        write_line(
            f"nothing is counted in {stats.folder} on {stats.device}: start programs there with"
            f" EDGEPACK_STATS={stats.folder}"
        )
        return
    heads = (
        "model", "release", "variant", "inferences", "mean", "half in", "99 % in", "errors",
        "outside",
    )  # fmt: skip
    print_rows(
        heads,
        [
            (f"{each.model} {each.version}", each.release, variant, *_list_cells(each, variant))
            for each in stats.counts
            for variant in each.variants
        ],
    )
    for each in stats.counts:
        written = datetime.fromtimestamp(each.written_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        write_line(f"{each.model} {each.release}: {each.loads} loads, written {written}")
        for variant, why in each.passed_over.items():
            write_line(f"  {variant} is passed over: {why}")
        if each.failed_writes:
            write_line(f"  {each.failed_writes} writes failed, and were made up for later")


def _list_cells(counts: api.Counts, variant: str) -> tuple[str, ...]:
    found = counts.variants[variant]
    errors = ", ".join(f"{count} {kind}" for kind, count in found.errors.items())
    outside = ", ".join(
        f"{name} {count / max(found.checked, 1):.2%}" for name, count in found.outside.items()
    )
    mean = f"{found.took_ns / found.inferences / 1e6:.3g} ms" if found.inferences else "n/a"
    return (
        f"{found.inferences}",
        mean,
        _format_bound(counts.find_bound_ms(variant, 0.5)),
        _format_bound(counts.find_bound_ms(variant, 0.99)),
        errors or "0",
        (outside or f"0 of {found.checked}") if found.checked else "not checked",
    )


def _format_bound(bound_ms: float | None) -> str:
    if bound_ms is None:
        return "n/a"
    return f"{bound_ms:g} ms" if bound_ms < float("inf") else "longer"


def _format_counts(counts: api.Counts) -> str:
    inferences = sum(found.inferences for found in counts.variants.values())
    errors = sum(sum(found.errors.values()) for found in counts.variants.values())
    return f"{counts.model} {counts.version}: {inferences} inferences, {errors} errors"
