"""What ``build`` and ``demo`` write of the bundles they made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edgepack import api
from edgepack.base.terminal import make_printable
from edgepack.cli.printing import print_table, write_line
from edgepack.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from edgepack.base.schema import NotMeasured


def print_build(result: api.BuildResult, *, verbose: bool = False) -> None:
    """Write a table of what was built; with ``verbose`` also what was tried to keep accuracy."""
    for built in result.bundles:
        _print_bundle(built, result.slower, verbose=verbose)
    for line in _list_conversion_lines(result.bundles):
        write_line(line)
    for library in (*result.libraries, *result.aars):
        write_line(str(library))
    for answer in result.pages:
        write_line(f"16 KB pages, {answer}")
    for line in result.saw:
        write_line(f"fp32 answers, {line}")
    for warning in result.warnings:
        write_line(f"warning: {warning}")
    manifests = [built.bundle.manifest for built in result.bundles]
    for line in _list_legend(manifests):
        write_line(line)
    is_hidden = not verbose and any(v.tried for manifest in manifests for v in manifest.variants)
    more = "; --verbose shows what was tried for int8" if is_hidden else ""
    write_line(f"{result.steps} steps, {result.from_cache} from the cache{more}")


def require_packager(asked: Mapping[str, bool]) -> None:
    """Check, before hours of building, that what was asked for can be written.

    Raises:
        ToolError: nfpm is not installed.
    """
    if any(asked.values()):
        api.find_nfpm()


def package_bundles(
    result: api.BuildResult, asked: Mapping[str, bool], out: Path, *, as_json: bool
) -> api.BuildResult:
    """Export what was built for Linux, as ``edgepack export`` does; return the result with it.

    Args:
        result: What was built.
        asked: By option, whether it was given.
        out: Where packages go.
        as_json: Write no lines of where they are.

    Raises:
        UsageError: Nothing was built for Linux, or a bundle cannot be a package.
        ToolError: nfpm is missing or fails, or the folder cannot be written.
    """
    forms: dict[str, api.ExportFormat] = {"--deb": "deb", "--ipk": "ipk"}
    given = [option for option in forms if asked[option]]
    for_linux = [b.bundle for b in result.bundles if api.is_for_linux(b.bundle)]
    if given and not for_linux:
        raise UsageError(
            "no bundle that was built is for Linux, and packages are",
            hint="leave it out, or build for a Linux target, too",
            where=given[0],
        )
    exported = tuple(
        api.export_bundle(bundle.path, forms[option], out).path
        for option in given
        for bundle in for_linux
    )
    for path in () if as_json else exported:
        write_line(str(path))
    return replace(result, exported=exported)


def build_projects(
    paths: Sequence[Path],
    refused: Mapping[str, object],
    build: Callable[[], Sequence[api.BuiltProject]],
    *,
    verbose: bool,
    as_json: bool,
) -> None:
    """Build several projects, and write a line for each.

    Args:
        paths: Their files.
        refused: Options that are for one project, with what was given.
        build: Does it.
        verbose: Also write what a build of each alone writes.
        as_json: Write JSON instead.

    Raises:
        UsageError: There are refused options.
    """
    from edgepack.cli.several import show_outcomes

    for option, given in refused.items():
        if given:
            raise UsageError(
                f"{len(paths)} projects are given, and {option} is for one",
                hint="leave it out, or build one project",
                where=option,
            )
    built = build()
    if verbose and not as_json:
        for each in built:
            if each.result:
                print_build(each.result)
    outcomes = [api.Outcome(str(each.path), each.result, each.error) for each in built]
    show_outcomes(outcomes, _summarize, as_json=as_json, what="project")


def _summarize(result: api.BuildResult) -> str:
    warned = f", {len(result.warnings)} warnings (--verbose)" if result.warnings else ""
    variants = sum(len(each.bundle.manifest.variants) for each in result.bundles)
    return (
        f"{len(result.bundles)} bundles, {variants} variants; {result.steps} steps,"
        f" {result.from_cache} from the cache{warned}"
    )


def build_pipeline(
    refused: Mapping[str, object],
    build: Callable[[], api.PipelineResult],
    *,
    verbose: bool,
    as_json: bool,
) -> None:
    """Build several models as one, and write what was built.

    Args:
        refused: Options that are for one model, with what was given.
        build: Does it.
        verbose: Also write what was tried to keep the parts' accuracy.
        as_json: Write JSON instead.

    Raises:
        UsageError: There are refused options.
    """
    from edgepack.cli.printing import print_json

    for option, given in refused.items():
        if given:
            raise UsageError(
                f"the project has several models, and {option} is for one",
                hint="leave it out: variants of a part are named in its own project ('targets'), a"
                " Python that converts it too ('converters')",
                where=option,
            )
    result = build()
    if as_json:
        print_json(result)
        return
    for name, part in result.parts.items():
        write_line(f"part {name}:")
        print_build(part, verbose=verbose)
    for built in result.bundles:
        for output in built.unchecked:
            write_line(
                f"warning: the golden samples check only the dtype of {output!r}: it changes when"
                " the parts are as far off as their own golden samples allow, or the objects that"
                " it is about are others then"
            )
        write_line(f"{built.bundle.path}  ({built.archive.name})")


def _print_bundle(
    built: api.BuiltBundle, slower: Sequence[api.SlowerVariant], *, verbose: bool
) -> None:
    manifest = built.bundle.manifest
    table = _make_bundle_table(manifest)
    table.columns[0].no_wrap = True  # an id is typed back as it stands
    print_table(table)
    lines = [
        *dict.fromkeys(_list_accuracy_lines(manifest)),
        *(f"{unused.stage} {unused}" for unused in manifest.unused),
        *(_format_slower(slow) for slow in slower if slow.target == manifest.target),
    ]
    for line in lines:
        write_line(line)
    if verbose:
        _print_tried(manifest)
    archives = (built.archive.name, built.package.name if built.package else "")
    write_line(f"{built.bundle.path}  ({', '.join(filter(None, archives))})")


def _list_conversion_lines(bundles: Sequence[api.BuiltBundle]) -> Iterator[str]:
    """Yield how far each output of a converted model is from its framework's own."""
    origin = bundles[0].bundle.manifest.model.converted_from if bundles else None
    if origin is None:
        return
    what = "random inputs" if origin.samples_from == "seeded random" else "samples"
    packages = ", ".join(f"{name} {version}" for name, version in origin.packages.items())
    yield f"converted from {origin.format} by {packages}"
    for each in origin.outputs:
        yield (
            f"  {each.name}: at most {each.farthest:.3g} from the framework's on"
            f" {origin.samples} {what} (on {each.sample}; allowed {each.tolerance:.3g},"
            f" largest value {each.largest:.3g})"
        )


def _format_slower(slow: api.SlowerVariant) -> str:
    found = slow.measured
    times = (
        f"{found.variant_ms:.3f} against {found.other_ms:.3f} ms (medians of {found.runs} runs in"
        " turns)"
    )
    worse = f"{'slower' if found.took_longer else 'no faster'} than {slow.other} on this computer"
    if found.inconclusive:
        return (
            f"INCONCLUSIVE whether {slow.variant} is {worse}: {times},"
            f" but {found.inconclusive}. Build again when it is idle, or measure both on"
            " the device (edgepack bench --variant)"
        )
    return (
        f"warning: {slow.variant} is {worse}: {times}; that does not"
        " change the order in which the loader tries them. Measure both on the device (edgepack"
        " bench --variant), and give your own order under 'targets' in edgepack.yaml"
    )


def _print_tried(manifest: api.Manifest) -> None:
    """Write a table for each variant of what was tried to keep its accuracy."""
    from rich.table import Table
    from rich.text import Text

    for variant in manifest.variants:
        stages = api.group_stages(variant.tried)
        if not stages:
            continue
        table = Table("tried", "kept", "found", "why", title=f"{manifest.target} {variant.id}")
        for stage in stages:
            table.add_section()
            table.add_row(Text(f"{stage.title}:", style="bold"))
            for row in stage.rows:
                cells = (row.what, row.kept, row.found, row.why)
                table.add_row(*(Text(make_printable(cell)) for cell in cells))
        print_table(table)
        write_line(api.NOT_COMPARABLE)


def _list_accuracy_lines(manifest: api.Manifest) -> Iterator[str]:
    """Yield what else the metric's function found, and what is not known of variants, and why."""
    from edgepack.base.schema import NotMeasured

    for variant in manifest.variants:
        accuracy = variant.accuracy
        if isinstance(accuracy, NotMeasured):
            yield f"accuracy was not measured: {accuracy.reason}"
        elif isinstance(accuracy.fp32, NotMeasured):
            yield f"accuracy was not compared with fp32: {accuracy.fp32.reason}"
        if isinstance(accuracy, api.Accuracy) and (others := api.format_others(accuracy)):
            yield f"{variant.id}: {others}"
        yield from _list_proof_lines(variant)


def _list_proof_lines(variant: api.ManifestVariant) -> Iterator[str]:
    """Yield what was compiled and simulated of a variant, and what is not known, and why."""
    from edgepack.base.schema import NotMeasured

    lacking = (
        (f"the errors of {variant.id}'s nodes were not measured", variant.layers),
        (f"{variant.id} was not run on inputs unlike the samples", variant.outside),
        (f"{variant.id} was not compiled", variant.compiled),
    )
    for what, found in lacking:
        if isinstance(found, NotMeasured):
            yield f"{what}: {found.reason}"
    if variant.compiled and not isinstance(variant.compiled, NotMeasured):
        first = variant.compiled[0]
        hardware = ", ".join(each.hardware for each in variant.compiled)
        yield f"{variant.id} is compiled for {first.option} {hardware} by the SDK {first.sdk}"
    if variant.simulated is not None:
        yield f"{variant.id} {_format_simulated(variant.simulated)}"


def _format_simulated(found: api.Simulated | NotMeasured) -> str:
    """Return what the vendor's simulator showed, or why it did not run."""
    from edgepack.base.schema import NotMeasured

    if isinstance(found, NotMeasured):
        return f"was not simulated: {found.reason}"
    return f"ran in the simulator of {found}"


def _make_bundle_table(manifest: api.Manifest) -> Table:
    """Return a row for each variant; of what is known of none of them there is no column."""
    from rich.table import Table

    judged = [v.accuracy for v in manifest.variants if isinstance(v.accuracy, api.Accuracy)]
    columns = [
        ("variant", [variant.id for variant in manifest.variants]),
        ("size MB", [f"{manifest.count_model_bytes(v) / 1e6:.2f}" for v in manifest.variants]),
        ("nodes taken", [_format_on_provider(variant) for variant in manifest.variants]),
        ("in int8", [_format_in_integers(variant) for variant in manifest.variants]),
    ]
    if judged:
        cells = zip(*(_make_accuracy_cells(v.accuracy) for v in manifest.variants), strict=True)
        titles = (judged[0].metric, "as fp32", "R²", "worst output")
        columns += zip(titles, map(list, cells), strict=True)
    # Two figures of closeness are one too many for 80 columns; the report has both.
    empty = ({_NOT_KNOWN}, {_ALL})
    shown = [(title, texts) for title, texts in columns if {*texts} not in empty]
    table = Table(caption=manifest.target + (f"; {_format_measured(judged[0])}" if judged else ""))
    for title, _ in shown:
        table.add_column(title, justify="left" if title == "variant" else "right", overflow="fold")
    for row in zip(*(texts for _, texts in shown), strict=True):
        table.add_row(*row)
    return table


_NOT_KNOWN, _ALL = "n/a", "all"


def _format_measured(accuracy: api.Accuracy) -> str:
    """Return what the metric's column holds: fp32's value is the same for all variants."""
    of_output = f" of {accuracy.output}" if accuracy.output else ""
    found = f"{accuracy.metric}{of_output} on {accuracy.samples} samples, on this computer's CPU"
    return f"{found}; fp32 {accuracy.fp32:.4f}" if isinstance(accuracy.fp32, float) else found


def _format_on_provider(variant: api.ManifestVariant) -> str:
    """Return how many nodes the provider is predicted to take; the CPU takes all."""
    return f"{variant.predicted.share:.0%}" if variant.predicted else _ALL


def _format_in_integers(variant: api.ManifestVariant) -> str:
    return f"{variant.fused.coverage:.0%}" if variant.fused else _NOT_KNOWN


def _make_accuracy_cells(accuracy: api.Accuracy | NotMeasured) -> tuple[str, str, str, str]:
    """Return metric, agreement where that is not the metric itself, R², and SQNR."""
    from edgepack.base.schema import NotMeasured

    if isinstance(accuracy, NotMeasured):
        return _NOT_KNOWN, _NOT_KNOWN, _NOT_KNOWN, _NOT_KNOWN
    same = accuracy.agreement
    return (
        f"{accuracy.value:.4f}",
        _NOT_KNOWN if same is None or accuracy.metric == "agreement" else f"{same:.1%}",
        _NOT_KNOWN if accuracy.metric == "r2" else api.format_r2(accuracy) or _NOT_KNOWN,
        api.format_nearness(accuracy.worst.sqnr_db)
        if accuracy.worst and not accuracy.r2
        else _NOT_KNOWN,
    )


def _list_legend(manifests: Sequence[api.Manifest]) -> Iterator[str]:
    """Yield what the tables' words mean, as far as they are used."""
    variants = [variant for manifest in manifests for variant in manifest.variants]
    if any(variant.predicted for variant in variants):
        yield "nodes taken: the share of the nodes that its provider is predicted to take"
    if any(variant.fused for variant in variants):
        yield "in int8: the share of an int8 model's kernels that the CPU computes in integers"
    found = [v.accuracy for v in variants if isinstance(v.accuracy, api.Accuracy)]
    for name in dict.fromkeys(accuracy.metric for accuracy in found if accuracy.output):
        yield f"{name}: {api.METRIC_TEXTS[name]}"
    if any(a.agreement is not None and a.metric != "agreement" for a in found):
        yield "as fp32: the share of the samples with fp32's best class"
    if any(accuracy.r2 and accuracy.metric != "r2" for accuracy in found):
        yield (
            "R²: of the worst output over the samples, with fp32's as the truth: 1 is fp32's own, 0"
            " a constant's"
        )
    if any(accuracy.worst and not accuracy.r2 for accuracy in found):
        yield (
            "worst output: how near the worst of the outputs is to fp32's; more is nearer, and at"
            " 20 dB the error is a tenth of the output"
        )
