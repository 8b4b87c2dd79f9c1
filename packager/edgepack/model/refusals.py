"""Explains why onnxruntime refuses a model, where the model's nodes show the reason."""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgepack.errors import ModelError, format_list
from edgepack.model.facts import EXTENSION_DOMAINS
from edgepack.model.quantized import walk_nested, walk_nodes
from edgepack.model.reading import read_structure

if TYPE_CHECKING:
    import onnx

_SHOWN = 4
_OF_TRAINING = ("ai.onnx.training", "ai.onnx.preview.training")
_INSTEAD = "export the model with operators of ONNX instead, or do that part outside the model"
_GIVE = "name the library in edgepack.yaml: custom_ops: {linux-x86-64: libmine.so}"
UNREGISTERED = re.compile(r"([\w.-]+):(\w+)\(-?\d+\) is not a registered")
"""Onnxruntime's message about an operator that it does not know: its domain and name."""
_UNRELEASED = re.compile(r"Opset (\d+) is under development.* is till opset (\d+)")
_NO_LOCALE = re.compile(r"Failed to construct locale with name:([^:]+):")


def explain_refusal(path: Path, message: str, library: Path | None = None) -> ModelError | None:
    """Return what is wrong with a model that onnxruntime refuses, None where that is not known.

    Args:
        path: The model.
        message: onnxruntime's message.
        library: Whose operators the session had beside onnxruntime's own.
    """
    model = read_structure(path)
    error = (
        _find_missing_opset(model, path)
        or _find_compiled_node(model)
        or _find_same_names(model, path)
        or _explain_message(message, path)
        or (_find_unregistered(model, message, library) if library else None)
        or _find_unknown_operators(model)
    )
    if error is not None:
        error.where = path.name
    return error


def _find_missing_opset(model: onnx.ModelProto, path: Path) -> ModelError | None:
    if model.opset_import:
        return None
    return ModelError(
        "the model does not say which operator set it was made with (it has no opset_import)",
        hint="export it again (torch.onnx.export(..., opset_version=17)); or, if you know the"
        " version, write it in: "
        + _format_edit(path, 'm.opset_import.append(onnx.helper.make_opsetid("", VERSION))'),
    )


def _format_edit(path: Path, change: str) -> str:
    """Return a command that changes a model in place."""
    name = json.dumps(path.name)
    code = f"import onnx; m = onnx.load({name}); {change}; onnx.save(m, {name})"
    return f"python -c {shlex.quote(code)}"


def _find_compiled_node(model: onnx.ModelProto) -> ModelError | None:
    """Source: onnxruntime.ai/docs/execution-providers/EP-Context-Design.html."""
    found = [n for n in walk_nodes(model) if (n.domain, n.op_type) == _EP_CONTEXT]
    if not found:
        return None
    sources = sorted(
        {a.s.decode("utf-8", "replace") for n in found for a in n.attribute if a.name == "source"}
    )
    made_for = f" for {' and '.join(sources)}" if any(sources) else ""
    return ModelError(
        f"the model was compiled{made_for} already: {_format_nodes(found)} holds code for one kind"
        " of device, and no operators that could be quantized or run elsewhere",
        hint="give the ONNX file it was made from; the provider compiles on the device",
    )


_NAMELESS = '[n.ClearField("name") for n in m.graph.node]'
_EP_CONTEXT = ("com.microsoft", "EPContext")


def _find_same_names(model: onnx.ModelProto, path: Path) -> ModelError | None:
    for nodes in _walk_graphs(model.graph.node):
        by_name = defaultdict(list)
        for node in nodes:
            by_name[node.name].append(node)
        for name, group in by_name.items():
            if name and len(group) > 1:
                ops = format_list(
                    [f"{_format_op(n)} that makes {_format_output(n)}" for n in group], _SHOWN
                )
                return ModelError(
                    f"{len(group)} nodes have the name {name!r}: {ops}",
                    hint="give each node a name of its own, or none, as this does: "
                    + _format_edit(path, _NAMELESS),
                )
    return None


def _walk_graphs(nodes: Sequence[onnx.NodeProto]) -> Iterator[Sequence[onnx.NodeProto]]:
    """Yield the nodes of a graph, and those of each body below it."""
    yield nodes
    for attribute in (a for node in nodes for a in node.attribute):
        for graph in (attribute.g, *attribute.graphs):
            if graph.node:
                yield from _walk_graphs(graph.node)


def _explain_message(message: str, path: Path) -> ModelError | None:
    """Return what onnxruntime's own message means."""
    text = " ".join(message.split())
    if found := _UNRELEASED.search(text):
        return ModelError(
            f"the model has opset {found[1]}; onnxruntime here loads up to {found[2]}",
            hint=f"export it again with opset {found[2]} or lower, or convert it: "
            + _format_edit(path, f"m = onnx.version_converter.convert_version(m, {found[2]})"),
        )
    if found := _NO_LOCALE.search(text):
        return ModelError(
            f"its StringNormalizer wants the locale {found[1]!r}, which this machine does not have",
            hint="install it, here and on devices (Debian: apt install locales; localedef -i"
            f" {found[1].partition('.')[0]} -f UTF-8 {found[1]}), or normalize strings outside the"
            " model",
        )
    return None


def _find_unregistered(model: onnx.ModelProto, message: str, library: Path) -> ModelError | None:
    """Return which operator, of those that onnxruntime lacks, a library lacks too."""
    found = UNREGISTERED.search(message)
    if found is None:
        return None
    same = [n for n in walk_nodes(model) if (n.domain, n.op_type) == (found[1], found[2])]
    return ModelError(
        f"the library of custom operators {library.name} does not register"
        f" {_format_nodes(same) if same else f'{found[1]}:{found[2]}'}",
        hint="register the operator there under this domain and name (CustomOpDomain_Add), or"
        " export the model with one that the library has",
    )


def _find_unknown_operators(model: onnx.ModelProto) -> ModelError | None:
    """Return which operators onnxruntime lacks: those of other domains, those of another opset."""
    known = list_operator_schemas()
    domains = {*_OF_TRAINING, *(domain for domain, _ in known)}
    own = {(function.domain, function.name) for function in model.functions}
    foreign: list[onnx.NodeProto] = []
    missing: list[onnx.NodeProto] = []
    for node, opset in _walk_nodes_with_opset(model):
        domain = _find_domain(node)
        if (node.domain, node.op_type) in own or domain in EXTENSION_DOMAINS:
            continue
        versions = known.get((domain, node.op_type), {})
        if not versions:
            (missing if domain in domains else foreign).append(node)
        elif problem := _find_outside_opset(node, versions, opset):
            return problem
    if foreign:
        theirs = ", ".join(sorted({repr(node.domain) for node in foreign}))
        return ModelError(
            f"custom operators, of {theirs}, need a library that registers them:"
            f" {_format_nodes(foreign)}",
            hint=f"{_GIVE}; or {_INSTEAD}",
        )
    return _make_missing_error(missing, known) if missing else None


def _walk_nodes_with_opset(model: onnx.ModelProto) -> Iterator[tuple[onnx.NodeProto, int]]:
    """Yield every node and the version of its operator set, 1 where none is said."""
    for part, nodes in ((model, model.graph.node), *((f, f.node) for f in model.functions)):
        imported = {"" if e.domain == "ai.onnx" else e.domain: e.version for e in part.opset_import}
        yield from ((node, imported.get(_find_domain(node), 1)) for node in walk_nested(nodes))


def _make_missing_error(
    nodes: Sequence[onnx.NodeProto], known: Mapping[tuple[str, str], object]
) -> ModelError:
    found = f"there is no such operator in onnxruntime: {_format_nodes(nodes)}"
    if _find_domain(nodes[0]) in _OF_TRAINING:
        return ModelError(
            found, hint="export the model for inference, without operators of training"
        )
    same_domain = [op for domain, op in known if domain == _find_domain(nodes[0])]
    near = difflib.get_close_matches(nodes[0].op_type, same_domain, n=1, cutoff=0.75)
    return ModelError(
        found,
        hint=f"{f'did you mean {near[0]!r}? ' if near else ''}{_INSTEAD}; an operator of your own"
        " belongs into a domain of your own, and into a library (custom_ops in edgepack.yaml)",
    )


def _find_outside_opset(
    node: onnx.NodeProto, versions: Mapping[int, Any], opset: int
) -> ModelError | None:
    """Return that an operator is not in the opset that a model says, if it is not."""
    name = _format_nodes([node])
    since = [version for version in versions if version <= opset]
    if not since:
        first = min(versions)
        return ModelError(
            f"{name} is an operator from opset {first} on, and the model says opset {opset}",
            hint=f"export it again with opset {first} or higher (torch.onnx.export(...,"
            f" opset_version={first}))",
        )
    if versions[max(since)].deprecated:
        return ModelError(
            f"{name} is an operator until opset {max(since) - 1} only, and the model says opset"
            f" {opset}",
            hint=f"export it again with opset {opset} and what took its place, or with opset"
            f" {max(since) - 1}",
        )
    return None


@cache
def list_operator_schemas() -> Mapping[tuple[str, str], Mapping[int, Any]]:
    """Return onnxruntime's operators, not only those of the standard: domain, name, version."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found: dict[tuple[str, str], dict[int, Any]] = {}
    for schema in state.get_all_operator_schema():
        found.setdefault((schema.domain, schema.name), {})[schema.since_version] = schema
    return found


def _format_nodes(nodes: Sequence[onnx.NodeProto]) -> str:
    """Return operators, each with the nodes that it is in."""
    by_op: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        by_op[_format_op(node)].append(
            repr(node.name) if node.name else f"for {_format_output(node)}"
        )
    found = [
        f"{op} ({'node' if len(names) == 1 else 'nodes'} {format_list(names, _SHOWN)})"
        for op, names in by_op.items()
    ]
    return format_list(found, _SHOWN)


def _format_output(node: onnx.NodeProto) -> str:
    return repr(next(filter(None, node.output), ""))


def _find_domain(node: onnx.NodeProto) -> str:
    return "" if node.domain == "ai.onnx" else str(node.domain)


def _format_op(node: onnx.NodeProto) -> str:
    domain = _find_domain(node)
    return f"{domain}:{node.op_type}" if domain else str(node.op_type)
