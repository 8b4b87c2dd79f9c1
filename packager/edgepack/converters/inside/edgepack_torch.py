"""Converts PyTorch's programs with PyTorch's own exporter, and runs them.

A program is what ``torch.export`` makes of a module: its graph with its weights, and none of the
module's Python. It comes from a ``.pt2``, or is made of the module that a function of the user's
returns.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import pickle
import re
import zipfile
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from edgepack_inside import Refused, find_versions, make_signature, open_source

_PACKAGES = ("torch", "onnxscript", "onnx-ir", "onnx", "torchvision")
_OLDEST = (2, 6)  # the first whose torch.onnx.export takes a program (release notes of 2.6)
_WHERE_MADE = "run it with the PyTorch that made the model: "
# What torch.export and the exporter raise for a model that they do not take: Python's own errors,
# beside those of theirs, which are RuntimeErrors.
_PROBLEMS = (
    RuntimeError, ValueError, TypeError, AttributeError, LookupError, AssertionError, SyntaxError,
)  # fmt: skip
# Beyond this a file of ONNX must have its weights beside it (protobuf takes 2 GiB).
_MOST_INSIDE = 1800 * 1024 * 1024
# Packages that bring operators of their own, which their import makes known.
_OPERATOR_PACKAGES = ("torchvision", "torchaudio")
_LINES = 3


class _Opened(NamedTuple):
    """A program, and what runs in its framework."""

    program: Any
    """The ExportedProgram."""
    call: Callable[..., Any]
    """The user's own module, or the program as a module."""
    dims: Dict[str, str]
    """The user's names of the program's symbols."""


def convert(source: str, folder: str, options: Dict[str, Any]) -> Dict[str, Any]:
    """Write ``model.onnx``, with the program's names of inputs and outputs."""
    _require_exporter()
    opened = _open(source, options)
    inputs = _list_inputs(opened.program)
    outputs = _list_outputs(opened.program, inputs)
    path = os.path.join(folder, "model.onnx")
    _export(opened.program, path, options["opset"])
    _finish(path, [name for name, _ in inputs], [name for name, _ in outputs], opened.dims)
    signature: Dict[str, Any] = make_signature(
        inputs, outputs, find_versions(_PACKAGES), notes=_list_ranges(opened)
    )
    return signature


def load(
    source: str, signature: Dict[str, Any], options: Dict[str, Any]
) -> Callable[[List[Any]], List[Any]]:
    """Return a function that runs the model on arrays in its own order of inputs."""
    import torch
    from torch.utils import _pytree

    opened = _open(source, options)
    spec, leaves = opened.program.call_spec.in_spec, _list_leaves(opened.program)
    places = {path: place for place, (path, _) in enumerate(leaves)}
    order = [places[each["source"]] for each in signature["inputs"]]

    def call(arrays: List[Any]) -> List[Any]:
        values = [getattr(argument, "value", None) for _, argument in leaves]
        for place, array in zip(order, arrays):
            values[place] = torch.from_numpy(array.copy()).to(_find_device(opened.call))
        args, kwargs = _pytree.tree_unflatten(values, spec)
        try:
            with torch.no_grad():
                found = opened.call(*args, **kwargs)
        except _PROBLEMS as error:
            shapes = {each["name"]: list(a.shape) for each, a in zip(signature["inputs"], arrays)}
            raise Refused(
                "PyTorch does not run it on inputs of the shapes %s: %s" % (shapes, _say(error)),
                "give samples of sizes that it takes, and 'dims' in edgepack.yaml for sizes that"
                " are free",
            ) from error
        tensors = [leaf for leaf in _pytree.tree_leaves(found) if isinstance(leaf, torch.Tensor)]
        return [tensor.detach().cpu().numpy() for tensor in tensors]

    return call


def _require_exporter() -> None:
    """Raise unless this Python has a PyTorch that is new enough, and what its exporter needs."""
    import torch

    if _read_version(torch.__version__) < _OLDEST:
        raise Refused(
            "PyTorch %s is older than %d.%d, whose exporter is the first that takes programs"
            % (torch.__version__, *_OLDEST),
            "name a Python with a newer PyTorch with --python",
        )
    missing = [name for name in ("onnx", "onnxscript") if not find_versions([name])]
    if missing:
        raise Refused(
            "this Python has PyTorch and no %s, with which it writes ONNX" % " and ".join(missing),
            "install it there: python -m pip install %s" % " ".join(missing),
        )


def _open(source: str, options: Dict[str, Any]) -> _Opened:
    import torch

    torch.manual_seed(0)  # a module whose weights are random has the same ones in each process
    made = open_source(source, options, _read_program)
    if isinstance(made, torch.export.ExportedProgram):
        return _Opened(made, made.module(), {})
    return _capture(made, options["function"])


def _read_program(source: str) -> Any:
    """Return the program in a .pt2.

    ``torch.export.load`` unpickles example inputs, and of weights and constants what is no plain
    tensor. With the variable below ``torch.load`` takes tensors and containers only, whatever its
    caller asks for (torch/serialization.py, 2.0 and newer).
    """
    import torch

    about = _read_about(source)
    _require_operators(about)
    own, made_by = torch.__version__, about.get("torch_version") or "another PyTorch"
    major = about["schema_version"]["major"]
    if _find_schema() not in (None, major):
        raise Refused(
            "it was saved by %s in version %s of the format, and the PyTorch %s here reads version"
            " %s" % (made_by, major, own, _find_schema()),
            _WHERE_MADE + "name a Python that has it with --python, or export the model again",
        )
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    try:
        with open(source, "rb") as file:
            return _load_archive(file)
    except pickle.UnpicklingError as error:
        raise Refused(
            "it holds pickled objects beside tensors, and to read these is to run code: %s"
            % _say(error),
            "save it with tensors, numbers, and lists or dicts of them as example inputs, or from"
            " a function of yours (model: {python: ..., framework: torch})",
        ) from error
    except (*_PROBLEMS, OSError) as error:
        raise Refused(
            "the PyTorch %s here does not load it, which was saved by %s: %s"
            % (own, made_by, _say(error)),
            _WHERE_MADE + "name a Python that has it with --python, or export the model again",
        ) from error


def _load_archive(file: Any) -> Any:
    """Return the program of an archive, whose errors ``torch.export.load`` only logs."""
    import torch

    try:
        from torch.export.pt2_archive._package import load_pt2
    except ImportError:  # PyTorch 2.7 and older
        return torch.export.load(file)
    return load_pt2(file).exported_programs["model"]


def _read_about(source: str) -> Dict[str, Any]:
    """Return the JSON of the program; what it is, edgepack has looked at before."""
    with zipfile.ZipFile(source) as archive:
        [name] = [each for each in archive.namelist() if each.endswith("/models/model.json")]
        about: Dict[str, Any] = json.loads(archive.read(name))
        return about


def _find_schema() -> Any:
    """Return the version of the format that this PyTorch reads, None if it does not say."""
    try:
        from torch._export.serde.schema import SCHEMA_VERSION
    except ImportError:
        return None
    return SCHEMA_VERSION[0]


def _read_version(text: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _require_operators(about: Dict[str, Any]) -> None:
    """Raise, naming operators, if this Python's PyTorch lacks some that the program calls."""
    lacking: Dict[str, str] = {}
    for node in about["graph_module"]["graph"]["nodes"]:
        words = node["target"].split(".")
        if words[:2] == ["torch", "ops"] and len(words) >= 4 and not _has_operator(*words[2:4]):
            trace = node.get("metadata", {}).get("stack_trace", "")
            lacking.setdefault("::".join(words[2:4]), trace)
    if lacking:
        found = ["%s%s" % (name, _say_where(trace)) for name, trace in lacking.items()]
        raise Refused(
            "it calls operators that are not PyTorch's, and that nothing here defines: %s"
            % ", ".join(found),
            "export the model without them, or take a function of yours whose module imports what"
            " defines them (model: {python: ..., framework: torch})",
        )


def _has_operator(namespace: str, name: str) -> bool:
    import torch

    if namespace in _OPERATOR_PACKAGES:
        with contextlib.suppress(ImportError):
            __import__(namespace)
    return namespace == "higher_order" or hasattr(getattr(torch.ops, namespace), name)


def _capture(made: Any, function: str) -> _Opened:
    """Return the program of what a function of the user's returned."""
    import torch

    module, args, kwargs, shapes = _take_apart(made, function)
    try:
        program = torch.export.export(module, args, kwargs, dynamic_shapes=shapes)
    except _PROBLEMS as error:
        raise Refused(
            "torch.export does not take the module that %r returns: %s" % (function, _say(error)),
            "call torch.export.export(module, example_inputs) there yourself, and change the"
            " module until it passes",
        ) from error
    return _Opened(program, module, _name_symbols(program, module, shapes) if shapes else {})


def _take_apart(made: Any, function: str) -> Tuple[Any, Tuple[Any, ...], Dict[str, Any], Any]:
    """Return module, positional and named example inputs, and dynamic shapes or None."""
    import torch

    hint = (
        "return (module.eval(), example_inputs) or (module.eval(), example_inputs,"
        " dynamic_shapes), as torch.export.export takes them; inputs by name are a dict"
    )
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise Refused("%r returns %s" % (function, _describe(made)), hint)
    module, examples, shapes = (*made, None)[:3]
    if not isinstance(module, torch.nn.Module):
        raise Refused("%r returns %s as module" % (function, _describe(module)), hint)
    if not isinstance(examples, (tuple, list, dict)):
        raise Refused(
            "%r returns %s as example inputs" % (function, _describe(examples)),
            hint,
        )
    training = [name or "the module itself" for name, m in module.named_modules() if m.training]
    if training:
        raise Refused(
            "%r returns a module in training mode, in which dropout and normalization differ (%s)"
            % (function, ", ".join(training[:_LINES])),
            "return module.eval()",
        )
    named = examples if isinstance(examples, dict) else {}
    return module, () if named else tuple(examples), named, shapes


def _describe(value: Any) -> str:
    if isinstance(value, tuple):
        return "(%s)" % ", ".join(type(each).__name__ for each in value)
    return "an object of type %s" % type(value).__name__


def _name_symbols(program: Any, module: Any, shapes: Any) -> Dict[str, str]:
    """Return the names that ``dynamic_shapes`` gives to a program's symbols (``s77``)."""
    from torch.utils import _pytree

    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    values = [
        nodes[argument.name].meta["val"] if argument.name in nodes else None
        for _, argument in _list_leaves(program)
    ]
    args, kwargs = _pytree.tree_unflatten(values, program.call_spec.in_spec)
    given: Any = args
    if isinstance(shapes, dict):
        given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    named: Dict[str, str] = {}
    for symbol, name in _pair_dims(shapes, given):
        if name not in named.values():
            named.setdefault(symbol, name)
    return named


def _pair_dims(shapes: Any, value: Any) -> Iterator[Tuple[str, str]]:
    """Yield each symbol in the shapes of tensors with the name of its Dim."""
    if hasattr(value, "shape"):
        axes = shapes.items() if isinstance(shapes, dict) else enumerate(shapes or ())
        for axis, dim in axes:
            name = getattr(dim, "__name__", "")
            if name.isidentifier():
                yield str(value.shape[axis]), name
    elif isinstance(shapes, dict):
        for key, each in shapes.items():
            yield from _pair_dims(each, value[key])
    elif isinstance(shapes, (list, tuple)):
        for each, part in zip(shapes, value):
            yield from _pair_dims(each, part)


def _list_leaves(program: Any) -> List[Tuple[str, Any]]:
    """Return where each input stands in the call, as in ``args[0]``, and its argument."""
    from torch.export.graph_signature import InputKind
    from torch.utils import _pytree

    user = [s.arg for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]
    numbered = _pytree.tree_unflatten(list(range(len(user))), program.call_spec.in_spec)
    found = []
    for path, number in _pytree.tree_flatten_with_path(numbered)[0]:
        text = _pytree.keystr(path)
        words = "args" + text[3:] if text.startswith("[0]") else "kwargs" + text[3:]
        found.append((words, user[number]))
    return found


def _list_inputs(program: Any) -> List[Tuple[str, str]]:
    """Return the names of inputs, each with where it stands in the call."""
    from torch.export.graph_signature import ConstantArgument, TensorArgument

    found = []
    for path, argument in _list_leaves(program):
        if isinstance(argument, TensorArgument):
            found.append((argument.name, path))
        elif not isinstance(argument, ConstantArgument):
            raise Refused(
                "its input %s is no tensor but %s" % (path, type(argument).__name__),
                "export it with a plain number there, which becomes a constant, or a tensor",
            )
    return found


def _list_outputs(program: Any, inputs: Sequence[Tuple[str, str]]) -> List[Tuple[str, str]]:
    """Return the names of outputs, twice: keys where it gives a dict, else the program's.

    Each differs from those of the inputs, and from one another.
    """
    from torch.export.graph_signature import ConstantArgument, OutputKind, TensorArgument
    from torch.utils import _pytree

    every = program.graph_signature.output_specs
    specs = [spec for spec in every if spec.kind is OutputKind.USER_OUTPUT]
    numbered = _pytree.tree_unflatten(list(range(len(specs))), program.call_spec.out_spec)
    found: List[Tuple[str, str]] = []
    for path, number in _pytree.tree_flatten_with_path(numbered)[0]:
        argument = specs[number].arg
        if isinstance(argument, TensorArgument):
            name = _make_name(path, argument.name, {each for each, _ in (*inputs, *found)})
            found.append((name, name))
        elif not isinstance(argument, ConstantArgument):
            raise Refused(
                "its output %r is no tensor but %s" % (argument.name, type(argument).__name__),
                "return tensors only",
            )
    return found


def _make_name(path: Sequence[Any], own: str, taken: Any) -> str:
    keys = [str(step.key) for step in path if isinstance(getattr(step, "key", None), str)]
    first = ".".join(keys) or own
    name, number = first, 2
    while name in taken:
        name, number = "%s_%d" % (first, number), number + 1
    return name


def _export(program: Any, path: str, opset: int) -> None:
    """Write the program as ONNX, without checking it: that is done on samples."""
    import torch

    weights = [*program.state_dict.values(), *program.constants.values()]
    held = sum(w.numel() * w.element_size() for w in weights if isinstance(w, torch.Tensor))
    try:
        made = torch.onnx.export(program, dynamo=True, opset_version=opset, verbose=False)
    except torch.onnx.errors.OnnxExporterError as error:
        raise _explain(program, error) from error
    _require_stateless(made.exported_program)
    made.save(path, external_data=held > _MOST_INSIDE)


def _require_stateless(program: Any) -> None:
    """Raise if a program, as the exporter has taken it apart, changes tensors of its own."""
    from torch.export.graph_signature import OutputKind

    specs = program.graph_signature.output_specs
    changed = [str(s.target) for s in specs if s.kind is not OutputKind.USER_OUTPUT]
    if changed:
        raise Refused(
            "it changes %s while it runs, and ONNX keeps nothing from run to run"
            % ", ".join(map(repr, changed[:_LINES])),
            "export it with that as inputs and outputs ('state' in edgepack.yaml feeds them)",
        )


def _explain(program: Any, error: BaseException) -> Refused:
    """Return what the exporter lacks: the operator, with where the model calls it."""
    chain = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    text = str(chain[-1])
    lacking = re.search(r"No ONNX function found for <\w+\(op='([^']+)'", text)
    if lacking is None:
        return Refused(
            "PyTorch's exporter does not write it as ONNX: %s" % _say(chain[-1]),
            "try a newer PyTorch and onnxscript with --python, or export it to ONNX where its code"
            " is and build from the .onnx",
        )
    name = lacking.group(1)
    used = [node for node in program.graph.nodes if str(node.target).startswith(name + ".")]
    where = _say_where(used[0].meta.get("stack_trace") or "") if used else ""
    times = ", %d times" % len(used) if len(used) > 1 else ""
    return Refused(
        "ONNX has no counterpart of %s%s%s" % (name.replace(".", "::"), where, times),
        "write that part of the model with other operators, or export it to ONNX where its code is"
        " (torch.onnx.export has custom_translation_table) and build from the .onnx",
    )


def _say_where(trace: str) -> str:
    """Return the line of the model's own code, the first of a trace."""
    found = re.search(r'File "([^"]+)", line (\d+), in (\S+)', trace)
    if found is None:
        return ""
    path, line, function = found.groups()
    return " (%s:%s in %s)" % (os.path.basename(path), line, function)


def _say(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "%s: %s" % (type(error).__name__, " ".join(lines[:_LINES]))


def _finish(path: str, inputs: Sequence[str], outputs: Sequence[str], dims: Dict[str, str]) -> None:
    """Name outputs and dimensions, and leave out what tells of this machine: traces with paths."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    if len(graph.input) != len(inputs) or len(graph.output) != len(outputs):
        raise Refused(
            "PyTorch's exporter wrote %d inputs and %d outputs where the program has %d and %d"
            % (len(graph.input), len(graph.output), len(inputs), len(outputs)),
            "try a newer PyTorch and onnxscript with --python",
        )
    _name_outputs(graph, outputs)
    _name_inputs(graph, inputs)
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = re.sub(
                    r"\w+", lambda word: dims.get(word.group(), word.group()), dim.dim_param
                )
    _forget(model, graph)
    onnx.save(model, path)


def _name_outputs(graph: Any, names: Sequence[str]) -> None:
    """Give outputs their names, by an Identity where the value is an input or given twice."""
    import onnx

    given = [value.name for value in graph.output]
    own = {value.name for value in (*graph.input, *graph.initializer)}
    taken = own.union(given, *(node.output for node in graph.node))
    for value, name in zip(graph.output, names):
        if value.name == name and given.count(name) == 1:
            continue
        if name in taken:
            _rename(graph, name, _find_free(name, taken))
        if value.name in own or given.count(value.name) > 1:
            node = onnx.helper.make_node("Identity", [value.name], [name], "output_" + name)
            graph.node.append(node)
        else:
            _rename(graph, value.name, name)
        value.name = name


def _name_inputs(graph: Any, names: Sequence[str]) -> None:
    """Give inputs their names: the exporter gives another to one that is an output, too."""
    taken = {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    taken.update(name for node in graph.node for name in node.output)
    for value, name in zip(graph.input, names):
        if value.name != name:
            if name in taken:
                _rename(graph, name, _find_free(name, taken))
            _rename(graph, value.name, name)
            value.name = name


def _find_free(name: str, taken: Any) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _rename(graph: Any, old: str, new: str) -> None:
    """Rename a value in all nodes of a graph and of those in it, and in its list of values."""
    for node in _list_nodes(graph):
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]
    for value in (*graph.value_info, *graph.initializer):
        if value.name == old:
            value.name = new


def _forget(model: Any, graph: Any) -> None:
    """Remove what the exporter notes for people: it holds paths and lines of source."""
    values = (*graph.input, *graph.output, *graph.value_info, *graph.initializer)
    for part in (model, graph, *values, *_list_nodes(graph)):
        del part.metadata_props[:]
        part.doc_string = ""


def _list_nodes(graph: Any) -> Iterator[Any]:
    """Yield the nodes of a graph, and of the graphs in them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _list_nodes(attribute.g)


def _list_ranges(opened: _Opened) -> List[str]:
    """Return the sizes that the program takes, for each dimension that is free."""
    found = []
    for symbol, span in opened.program.range_constraints.items():
        name = opened.dims.get(str(symbol), str(symbol))
        upper = int(span.upper) if getattr(span.upper, "is_Integer", False) else None
        most = "any size" if upper is None or upper >= 2**31 else str(upper)
        found.append("the dimension %r is %s to %s" % (name, span.lower, most))
    return found


def _find_device(module: Any) -> Any:
    """Return the device that a module's first parameter or buffer lies on."""
    for tensor in (*module.parameters(), *module.buffers()):
        return tensor.device
    return "cpu"
