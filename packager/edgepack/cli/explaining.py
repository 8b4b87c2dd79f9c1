"""``edgepack explain``."""

from __future__ import annotations

from typing import Annotated

import typer

from edgepack import api
from edgepack.cli.history import open_store
from edgepack.cli.options import JsonOption, ResultsOption

REMEDIES = 3
"""How many bottlenecks are shown without ``--all``."""
NODES = 8


def explain(
    run: Annotated[
        str | None, typer.Argument(help="A run's id [default: the newest]", show_default=False)
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All bottlenecks and nodes, not only the largest.")
    ] = False,
    results: ResultsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say why a run takes as long as it does, and what may help.

    Nodes are held against what the device's processor reaches at best (a roofline). A gain is what
    could be saved of a run at most, by this bottleneck alone.
    """
    from edgepack.cli.printing import print_json, print_rows, write_line

    found = api.explain_run(open_store(results), run)
    if as_json:
        print_json(api.make_explanation_document(found))
        return
    write_line(api.format_explained(found))
    for reason in api.list_doubts(found):
        write_line(reason)
    nodes = api.list_node_rows(found)
    if nodes:
        print_rows(("part of a run", "time", "of a run", "nodes"), api.list_part_rows(found))
        heads = ("node", "operator", "time", "of a run", "bound by", "of the best")
        print_rows(heads, nodes if everything else nodes[:NODES])
    shown = found.bottlenecks if everything else found.bottlenecks[:REMEDIES]
    for number, each in enumerate(shown, 1):
        write_line(f"{number}. {each.what}")
        write_line(f"   gain: {each.words}. {each.remedy}")
    hidden = len(found.bottlenecks) - len(shown)
    if not found.bottlenecks:
        write_line("no bottleneck was found")
    if hidden:
        write_line(f"{hidden} more: --all")
    for what in found.unknown:
        write_line(f"not known: {what}")
