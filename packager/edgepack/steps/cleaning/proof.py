"""Proves by running that a cleaned model gives what the model gave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepack.base.arrays import Array
from edgepack.errors import BugError, ModelError, StepError
from edgepack.metrics.accuracy import min_sqnr_db
from edgepack.model.facts import TensorSpec, read_signature
from edgepack.model.ir import loadable
from edgepack.model.reading import read_outline
from edgepack.model.running import Arrays, Session, make_random_inputs, make_session, run_session
from edgepack.steps.cleaning.draft import ML, is_op
from edgepack.steps.cleaning.signature import read_zip_labels
from edgepack.steps.comparing import SEED

if TYPE_CHECKING:
    import onnx

ROWS = (1, 2, 3)
"""How many samples a batch has in a proof."""
_MORE_ROWS = 32
"""For labels, of which few rows show few."""
_SAME_DB = 60.0
_TEXTS = "OUS"
"""Kinds of numpy types that hold texts."""


@dataclass(frozen=True)
class Sides:
    """A model before and after its cleaning."""

    before: Path
    after: Path
    labels: Mapping[str, Sequence[str]]
    """By output of the cleaned model: what its values or columns stand for."""
    sizes: Mapping[str, int]
    """Of symbolic dimensions, where the project gives them."""


def prove_outputs(sides: Sides) -> None:
    """Prove that both models give the same, on batches of random inputs.

    A dictionary has to have the values of its row, a label the text that its number stands for.
    Where random inputs do not fit the model, it has to be the same node by node.

    Raises:
        BugError: They do not.
        StepError: Random inputs do not fit the model, and its nodes changed.
    """
    before, after = read_outline(sides.before), read_outline(sides.after)
    inputs, outputs = read_signature(after)
    named = [(spec.name, spec.dtype) for spec in inputs]
    if named != [(spec.name, spec.dtype) for spec in read_signature(before)[0]]:
        raise BugError("the cleaning changed the inputs")
    feeds = [*_make_feeds(inputs, sides)]
    try:
        with loadable(sides.before) as source:
            expected = [*_run_all(source, feeds)]
    except ModelError as error:
        _require_same_nodes(before, after, error)
        return
    given = [*_run_all(sides.after, feeds[: len(expected)])]
    if len(given) != len(expected):
        raise BugError(f"the cleaned model takes {len(given)} of {len(expected)} batches")
    maps = {value.name: _find_map_keys(before, value.name) for value in before.graph.output}
    for feed, old, new in zip(feeds, expected, given, strict=False):
        wanted = dict(_expect(old, maps))
        if wanted.keys() != new.keys():
            raise BugError(f"the outputs are {', '.join(new)}, not {', '.join(wanted)}")
        for name, value in wanted.items():
            _require_equal(name, value, _read_labels(new[name], value, sides.labels.get(name, ())))
        _require_declared(feed, new, (*inputs, *_list_changed(before, outputs)))


def have_one_batch(model: Path, sizes: Mapping[str, int]) -> bool:
    """Return whether all inputs have to have as many rows as the first.

    False where there is one input, first sizes are not free, or random inputs do not fit the model.

    Args:
        model: The model file.
        sizes: Of symbolic dimensions, where the project gives them.

    Raises:
        ModelError: The file cannot be read, or onnxruntime does not load it.
    """
    inputs, _ = read_signature(read_outline(model))
    if len(inputs) < 2 or not _has_free_rows(inputs):
        return False
    with loadable(model) as source:
        session = make_session(source)
    rows, more = ROWS[1:]
    equal = {spec.name: fill_sizes(spec, inputs, rows, sizes) for spec in inputs}
    longer = {spec.name: fill_sizes(spec, inputs, more, sizes) for spec in inputs}
    return _takes(session, [*equal.values()]) and not any(
        _takes(session, [*{**equal, name: longer[name]}.values()]) for name in longer
    )


def _has_free_rows(inputs: Sequence[TensorSpec]) -> bool:
    return all(spec.shape and not isinstance(spec.shape[0], int) for spec in inputs)


def _takes(session: Session, inputs: Sequence[TensorSpec]) -> bool:
    try:
        run_session(session, make_random_inputs(inputs, seed=SEED))
    except ModelError:
        return False
    return True


def find_batched_outputs(model: Path, sizes: Mapping[str, int]) -> frozenset[str]:
    """Return the outputs with as many rows as all inputs have, for 2 and 3 rows.

    None where the first sizes of inputs are not free, or random inputs do not fit the model.

    Args:
        model: The model file.
        sizes: Of symbolic dimensions, where the project gives them.

    Raises:
        ModelError: The file cannot be read, or onnxruntime does not load it.
    """
    inputs, _ = read_signature(read_outline(model))
    if not inputs or not _has_free_rows(inputs):
        return frozenset()
    batched: set[str] | None = None
    with loadable(model) as source:
        session = make_session(source)
    for rows in ROWS[1:]:
        feed = make_random_inputs([fill_sizes(s, inputs, rows, sizes) for s in inputs], seed=SEED)
        try:
            outputs: dict[str, Any] = run_session(session, feed)
        except ModelError:
            return frozenset()
        arrays = {n: each for n, each in outputs.items() if isinstance(each, np.ndarray)}
        found = {name for name, each in arrays.items() if each.shape[:1] == (rows,)}
        batched = found if batched is None else batched & found
    return frozenset(batched or ())


def _list_changed(before: onnx.ModelProto, outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    old = {*read_signature(before)[1]}
    return [spec for spec in outputs if spec not in old]


def _make_feeds(inputs: Sequence[TensorSpec], sides: Sides) -> Iterator[Arrays]:
    rows = (*ROWS, _MORE_ROWS) if sides.labels else ROWS
    for number, count in enumerate(rows):
        fixed = [fill_sizes(spec, inputs, count, sides.sizes) for spec in inputs]
        yield make_random_inputs(fixed, seed=SEED + number)


def fill_sizes(
    spec: TensorSpec, inputs: Sequence[TensorSpec], rows: int, sizes: Mapping[str, int]
) -> TensorSpec:
    """Return an input with sizes for what is symbolic: ``rows`` in front, 1 elsewhere."""
    if spec.shape is None:
        return spec
    first = {other.shape[0] for other in inputs if other.shape}
    shape: list[int] = []
    for axis, size in enumerate(spec.shape):
        in_front = size in first if size != "?" else axis == 0
        free = sizes.get(str(size), rows if in_front else 1)
        shape.append(size if isinstance(size, int) else free)
    return TensorSpec(spec.name, spec.dtype, tuple(shape))


def _run_all(model: Path, feeds: Sequence[Arrays]) -> Iterator[dict[str, Any]]:
    """Yield a model's outputs for the first feed, and for those of the others that it takes."""
    session = make_session(model)
    for number, feed in enumerate(feeds):
        try:
            yield run_session(session, feed)
        except ModelError:
            if number == 0:
                raise
            return


def _require_same_nodes(before: onnx.ModelProto, after: onnx.ModelProto, error: ModelError) -> None:
    """Prove that two models differ in names of dimensions and in imports alone.

    Raises:
        StepError: Their nodes or weights differ.
    """
    same = list(before.graph.node) == list(after.graph.node) and list(
        before.graph.initializer
    ) == list(after.graph.initializer)
    if not same:
        raise StepError(
            f"what was cleaned cannot be proven: {error.problem}",
            hint="random inputs were tried: give the sizes of symbolic dimensions under 'dims' in"
            " edgepack.yaml (edgepack inspect has their names)",
        ) from error


def _find_map_keys(model: onnx.ModelProto, output: str) -> list[str] | list[int]:
    """Return the keys of an output's dictionaries, in the order of columns; else nothing."""
    makers = [node for node in model.graph.node if output in node.output]
    return read_zip_labels(makers[0]) if makers and is_op(makers[0], "ZipMap", ML) else []


def _expect(
    old: Mapping[str, Any], maps: Mapping[str, Sequence[str | int]]
) -> Iterator[tuple[str, Array]]:
    """Yield what the cleaned model has to give: its labels as texts, all else as arrays."""
    for name, value in old.items():
        if not isinstance(value, list):
            yield name, value
        elif keys := maps[name]:
            yield name, np.array([[row[key] for key in keys] for row in value], np.float32)
        else:
            yield from ((f"{name}_{number}", each) for number, each in enumerate(value))


def _read_labels(given: Array, expected: Array, labels: Sequence[str]) -> Array:
    """Return the texts that an output's numbers stand for, where texts are expected."""
    if expected.dtype.kind not in _TEXTS or given.dtype.kind in _TEXTS:
        return given
    texts = np.array([*labels, "(no label)"], object)
    known = (given >= 0) & (given < len(labels))
    return np.asarray(texts[np.where(known, given, len(labels))])


def _require_equal(name: str, expected: Array, given: Array) -> None:
    is_text = expected.dtype.kind in _TEXTS
    if expected.shape != given.shape or not (is_text or expected.dtype == given.dtype):
        raise BugError(
            f"the output {name!r} is {given.dtype}{list(given.shape)} after the cleaning, and"
            f" {expected.dtype}{list(expected.shape)} before"
        )
    if expected.dtype.kind != "f" and not np.array_equal(given, expected):
        raise BugError(f"the output {name!r} has other values after the cleaning")
    found = min_sqnr_db({name: expected}, {name: given})
    if expected.dtype.kind == "f" and found < _SAME_DB:
        raise BugError(
            f"the output {name!r} has other values after the cleaning: it is {found:.0f} dB from"
            " what it was"
        )


def _require_declared(feed: Arrays, given: Arrays, specs: Sequence[TensorSpec]) -> None:
    """Prove that a name stands for one size, in inputs and in the outputs that were changed."""
    sizes: dict[str, int] = {}
    for spec in specs:
        shape = {**feed, **given}[spec.name].shape
        if spec.shape is None:
            continue
        if len(shape) != len(spec.shape):
            raise BugError(f"{spec} is declared, and has the shape {list(shape)}")
        for size, found in zip(spec.shape, shape, strict=True):
            known = size if isinstance(size, int) else sizes.setdefault(size, found)
            if size != "?" and known != found:
                raise BugError(f"{spec} is declared, and has the shape {list(shape)}")
