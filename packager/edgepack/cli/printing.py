"""Results on stdout: as one JSON document, or as text for people."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from edgepack import api
from edgepack.base.terminal import make_printable
from edgepack.errors import EdgepackError, format_list

if TYPE_CHECKING:
    from rich.table import Table


NODES_SHOWN = 3
"""Of nodes that a provider leaves for the same reason; ``--json`` has all."""

LEAST_COLUMNS = 80
"""In less, rich drops columns of our widest table."""


def print_json(value: object) -> None:
    """Write any of the library's results as JSON."""
    sys.stdout.write(json.dumps(_make_plain(value), indent=2) + "\n")


def _make_plain(value: Any) -> Any:  # noqa: ANN401  (whatever a result holds)
    from pydantic import BaseModel

    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {field.name: _make_plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, dict):
        return {str(key): _make_plain(item) for key, item in value.items()}
    if isinstance(value, EdgepackError):
        return {"problem": value.problem, "hint": value.hint}
    if isinstance(value, list | tuple | set | frozenset):
        return [_make_plain(item) for item in value]
    return str(value) if isinstance(value, PurePath) else value


def write_line(text: str = "") -> None:
    """Write one line on stdout, without what a terminal would obey."""
    sys.stdout.write(make_printable(text) + "\n")


def print_table(table: Table) -> None:
    """Write a table; on a terminal too narrow for it, cells stay whole and lines wrap."""
    from rich.console import Console

    least = max(LEAST_COLUMNS, table.min_width or 0)
    Console(width=max(Console().width, least)).print(table)


def print_rows(heads: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> None:
    """Write a table whose cells stay whole however narrow the terminal is.

    A column of which nothing is known, ``n/a`` in each row, is left out.
    """
    from rich.table import Table
    from rich.text import Text

    printable = [tuple(map(make_printable, row)) for row in rows]
    columns = [
        (head, texts) for head, *texts in zip(heads, *printable, strict=True) if {*texts} - {"n/a"}
    ]
    table = Table(*(head for head, _ in columns), title=make_printable(title) or None)
    # Three characters are between two cells.
    table.min_width = 1 + sum(3 + max(map(len, (head, *texts))) for head, texts in columns)
    for texts in zip(*(texts for _, texts in columns), strict=True):
        table.add_row(*map(Text, texts))
    print_table(table)


def print_inspection(inspection: api.Inspection) -> None:
    """Write facts and findings."""
    _print_facts(inspection.facts, inspection.constants)
    for line in inspection.converted:
        write_line(line)
    for line in inspection.made:
        write_line(f"made before: {line}")
    if inspection.memory_bytes:
        write_line(api.format_memory(inspection.memory_bytes))
    for line in _format_findings(inspection.findings):
        write_line(line)
    said: dict[tuple[str, ...], str] = {}
    for variant in inspection.variants:
        _print_variant(variant, said)
    if any(
        len(group) > NODES_SHOWN
        for v in inspection.variants
        for group in api.group_findings(v.findings)
    ):
        write_line("every node by name: edgepack inspect --json")
    if not inspection.findings and not any(v.findings or v.unused for v in inspection.variants):
        write_line("no problems were found")


def _print_facts(facts: api.ModelFacts, constants: Mapping[str, api.ConstantValue]) -> None:
    write_line(f"{facts.name}  {facts.file_bytes} bytes  sha256 {facts.sha256}")
    domains = "".join(f", {name or 'ai.onnx'} {v}" for name, v in facts.domains.items())
    maker = f"; {facts.producer}" if facts.producer else ""
    write_line(f"opset {facts.opset}{domains}; IR {facts.ir_version}{maker}")
    for role, specs in (("input ", facts.inputs), ("output", facts.outputs)):
        for spec in specs:
            fixed = role == "input " and spec.name in constants
            write_line(f"{role} {spec}{f' = {constants[spec.name]}' if fixed else ''}")
    ops = ", ".join(f"{name} {count}" for name, count in facts.op_counts.items())
    write_line(f"operators: {ops}")
    write_line(f"weights: {facts.initializer_bytes} bytes")
    if facts.quantization:
        write_line(facts.quantization.state)
    if facts.external_data:
        write_line(f"external data: {', '.join(facts.external_data)}")


def _print_variant(found: api.VariantInspection, said: dict[tuple[str, ...], str]) -> None:
    """Write one variant; ``said`` has what was written of others, by its lines."""
    if found.nodes:
        what = (
            f"{found.taken} of {found.nodes} nodes on {found.provider}"
            f" in {found.partitions} partition{'' if found.partitions == 1 else 's'}"
        )
    elif found.unused:
        what = "cannot be made"
    else:
        what = "no nodes are left: all outputs of the model are constants"
    name = f"{found.target} {found.variant}"
    write_line(f"{name}: {what}")
    why = found.unused
    lines = (
        *([f"{why.stage}: {why.reason}"] if why else []),
        *([f"  hint: {why.hint}"] if why and why.hint else []),
        *_format_findings(found.findings),
    )
    if lines and said.setdefault(lines, name) != name:
        lines = (f"the same as for {said[lines]}",)
    for line in lines:
        write_line(f"  {line}")


def _format_findings(findings: Sequence[api.Finding]) -> Iterator[str]:
    """Yield findings, those that say the same of several nodes together."""
    for group in api.group_findings(findings):
        first = group[0]
        example = "" if len({found.reason for found in group}) == 1 else "for example, "
        about = f"{_format_nodes(group)}: {example}" if first.node else ""
        yield f"{first.backend} {first.severity}: {about}{first.reason}"
        yield f"  hint: {first.remedy}"


def _format_nodes(group: Sequence[api.Finding]) -> str:
    names = [found.node for found in group]
    if len(names) == 1:
        return f"node {names[0]}"
    return f"{len(names)} nodes, {format_list(names, NODES_SHOWN)}"


def print_plan(plan: api.Plan, *, as_json: bool) -> None:
    """Write a plan."""
    lines = list(plan.describe())
    if as_json:
        print_json({"digest": plan.digest, "plan": lines})
        return
    for line in lines:
        write_line(line)
    write_line(f"digest  {plan.digest}")


def print_verification(verification: api.Verification) -> None:
    """Write what was proven about a bundle."""
    write_line(f"{verification.bundle}: {verification.files} files have their hashes")
    signature = verification.signature
    write_line(f"{signature}" if signature else "not signed")
    if signature and signature.unknown:
        write_line(f"the signer is unknown: {signature.unknown}")
    for check in verification.goldens:
        write_line(f"{check.variant}: {check.outcome}")


def print_evaluation(report: api.EvaluationReport) -> None:
    """Write the metric on the device beside the one simulated on the build host."""
    from rich.table import Table
    from rich.text import Text

    from edgepack.base.terminal import make_printable

    table = Table(
        title=Text(make_printable(f"{report.bundle} on {report.device}")), show_header=False
    )
    table.add_column("what", style="bold", no_wrap=True)
    table.add_column("value", overflow="fold")
    for what, value in _make_evaluation_rows(report):
        table.add_row(what, Text(make_printable(value)))
    print_table(table)


def format_evaluation(report: api.EvaluationReport) -> str:
    """Return an evaluation as one line: the variant, and its metric on the device."""
    found = report.measured
    return f"{report.variant}: {found.metric} {found.value:.4f} on {found.samples} samples"


def _make_evaluation_rows(report: api.EvaluationReport) -> Iterator[tuple[str, str]]:
    from edgepack.base.schema import NotMeasured
    from edgepack.base.statistics import median

    found, host = report.measured, report.simulated
    yield "variant", report.variant
    yield from ((each.stage, f"{each.variant}: {each.reason}") for each in report.unused)
    interval = (
        f"no interval: {report.interval.reason}"
        if isinstance(report.interval, NotMeasured)
        else f"{report.interval[0]:.4f} to {report.interval[1]:.4f} at 95 %"
    )
    of_output = f" of {found.output}" if found.output else ""
    yield (
        f"measured {found.metric}{of_output}",
        f"{found.value:.4f} ({interval}), {found.samples} samples",
    )
    yield (
        "simulated on the host",
        f"unknown ({host.reason})"
        if isinstance(host, NotMeasured)
        else f"{host.value:.4f}" + (f" ({host.metric})" if host.metric != found.metric else ""),
    )
    if others := api.format_others(found):
        yield "other values", others
    if isinstance(found.fp32, float):
        yield "fp32", f"{found.fp32:.4f}"
    if found.worst:
        yield "worst output", f"{found.worst.output} {found.worst.sqnr_db:.1f} dB from fp32's"
    if found.metric != "r2" and (r2 := api.format_r2(found)):
        yield "R²", f"{r2}, of the worst output"
    if found.says_nothing:
        yield "no better than a constant", found.says_nothing
    yield (
        "nodes by provider",
        f"unknown ({report.placement.reason})"
        if isinstance(report.placement, NotMeasured)
        else ", ".join(f"{name} {count}" for name, count in report.placement.counts.items()),
    )
    yield "median inference", f"{median(report.inference_ns) / 1e6:#.4g} ms"
    resumed = f", {report.resumed} samples of an earlier call" if report.resumed else ""
    yield "took", f"{report.elapsed_ns / 1e9:.1f} s{resumed}"
    yield from (("not usable", reason) for reason in report.reasons)
