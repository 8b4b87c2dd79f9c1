"""Writes plans for the measuring program: a variant's sessions and goldens, in lines.

The host reads the manifest, chooses models for sizes and pads inputs, as the loader does on
machines; ``ondevice/native/edgepack_measure.c`` documents the lines. The only I/O is reading golden
tensors that have to be padded, or that a palette holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from edgepack.bundle.manifest import GoldenTensor, ManifestVariant
from edgepack.bundle.reading import Bundle
from edgepack.errors import BundleError
from edgepack.ondevice.runtime import edgepack_batches as batches
from edgepack.ondevice.runtime import edgepack_shapes as shapes
from edgepack.project.profile import Provider, SessionSettings

CPU = "CPUExecutionProvider"
CACHE = "{cache}"
PRECISE = "session.x64quantprecision"
VNNI = frozenset({"avx512_vnni", "avx_vnni"})

_OVER_BATCH = "golden outputs, over the whole batch"
_REPEATED = "golden outputs of one sample, repeated over the whole batch: not whether samples mix"

Feed = dict[str, np.ndarray]


@dataclass(frozen=True)
class Plan:
    """What one run of the program does."""

    text: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Inputs that are not in the bundle, by the path that the text has for them."""
    how: str = ""
    """Of a batch: what its outputs are compared with."""


@dataclass(frozen=True)
class PlannedModel:
    """One of a variant's model files, with the sizes it is for."""

    path: str
    dims: Mapping[str, int]
    """Empty where it takes all sizes."""


class Planner:
    """Makes the plans of one variant.

    Args:
        bundle: The bundle.
        entry: The variant.
        cpu_flags: Of the device.
        cache: The folder on the device that stands for ``{cache}``.
        work: What paths of :attr:`Plan.files` begin with; the bundle's are as in its manifest.
    """

    def __init__(
        self,
        bundle: Bundle,
        entry: ManifestVariant,
        *,
        cpu_flags: frozenset[str],
        cache: str,
        work: str,
    ) -> None:
        self.bundle = bundle
        self.entry = entry
        self._cpu_flags = cpu_flags
        self._cache = cache
        self._work = work
        manifest = bundle.manifest
        described = {
            name: description.model_dump(exclude_none=True)
            for name, description in manifest.input_descriptions.items()
        }
        specs = [shapes.TensorSpec(t.name, t.dtype, tuple(t.shape)) for t in manifest.inputs]
        self._shapes = shapes.InputShapes(specs, described)
        self._models = [PlannedModel(bucket.model, bucket.dims) for bucket in entry.buckets]
        self._models = self._models or [PlannedModel(entry.model, {})]

    def plan_check(self) -> Plan:
        """Return the plan that proves the variant: all goldens, and one for each model.

        A model that is too small for every golden input runs with one that is cut to its size,
        whose outputs are unknown.
        """
        feeds = [self._read_feed(number) for number in range(len(self.bundle.manifest.goldens))]
        places = [self._find_model(feed) for feed in feeds]
        parts = [
            self._make_golden(number, places[number], feed) for number, feed in enumerate(feeds)
        ]
        for place, model in enumerate(self._models):
            if place in places:
                continue
            held = [number for number, feed in enumerate(feeds) if self._can_take(model, feed)]
            if held:
                parts.append(self._make_golden(held[0], place, feeds[held[0]]))
            else:
                resized = self._shapes.resize_feed(feeds[0], model.dims)
                parts.append(self._make_unknown(place, resized, f"size-{place}"))
        return self._make_plan(self._models, parts)

    def plan_goldens(self) -> Plan:
        """Return the plan for all goldens."""
        parts = []
        for number in range(len(self.bundle.manifest.goldens)):
            feed = self._read_feed(number)
            parts.append(self._make_golden(number, self._find_model(feed), feed))
        return self._make_plan(self._models, parts)

    def plan_profile(self) -> Plan:
        """Return the plan for the first golden, with only the session that it is for."""
        feed = self._read_feed(0)
        model = self._models[self._find_model(feed)]
        return self._make_plan([model], [self._make_golden(0, 0, feed, model)])

    def plan_reshaped(self, wanted: Mapping[str, Sequence[int]]) -> Plan:
        """Return the plan for goldens in other shapes, whose outputs are unknown.

        Raises:
            ValueError: The inputs cannot have these shapes, or no model takes them.
        """
        from edgepack.ondevice.harness import edgepack_load as load

        parts = []
        for number in range(len(self.bundle.manifest.goldens)):
            feed = load.reshape_feed(self._read_feed(number), wanted)
            parts.append(self._make_unknown(self._find_model(feed), feed, f"sweep-{number}"))
        return self._make_plan(self._models, parts)

    def plan_batch(self, batch: int) -> Plan | None:
        """Return the plan for golden samples that are joined to batches, with their outputs joined.

        None where it cannot be told what these are: if an output does not begin with the batch. One
        golden sample is repeated, which shows no graph that mixes samples.

        Raises:
            ValueError: No model takes such a batch.
        """
        feeds = [self._read_feed(number) for number in range(len(self.bundle.manifest.goldens))]
        first = self._shapes.inputs[0]
        axes = batches.find_axes(self._shapes.inputs, shapes.find_shapes(feeds[0]))
        alike = [number for number, feed in enumerate(feeds) if _can_join(feed, feeds[0], axes)]
        count, rest = divmod(batch, feeds[0][first.name].shape[0]) if first.shape else (0, 1)
        if rest or not axes or not self._begin_with_batch():
            return None
        parts = []
        for begin in range(len(alike)):
            chosen = [alike[(begin + number) % len(alike)] for number in range(count)]
            feed = batches.join([feeds[number] for number in chosen], axes)
            right = self._join_outputs(chosen, f"batch-{begin}")
            if right is None:
                return None
            made = self._make_unknown(self._find_model(feed), feed, f"batch-{begin}")
            cuts = self._list_cuts(feed) if self.entry.buckets else ()
            text = "\n".join([made.text, right.text, *cuts])
            parts.append(Plan(text, {**made.files, **right.files}))
        how = _OVER_BATCH if len(alike) > 1 else _REPEATED
        return replace(self._make_plan(self._models, parts), how=how)

    def _begin_with_batch(self) -> bool:
        """Return whether each output begins with the batch, as the manifest has it."""
        first, outputs = self._shapes.inputs[0].shape, self.bundle.manifest.outputs
        if isinstance(first[0], int):
            return all(each.shape[:1] == [first[0]] for each in outputs)
        specs = [shapes.TensorSpec(t.name, t.dtype, tuple(t.shape)) for t in outputs]
        begins = batches.find_output_axes(self._shapes.inputs, specs)
        return all(begins.get(spec.name) == 0 for spec in specs)

    def _join_outputs(self, chosen: Sequence[int], prefix: str) -> Plan | None:
        """Return the lines of golden outputs that are joined along their first axis.

        None where what is kept of one does not end with a sample.
        """
        lines: list[str] = []
        files: dict[str, bytes] = {}
        goldens = [self.bundle.manifest.goldens[number].outputs[self.entry.id] for number in chosen]
        for place, tensors in enumerate(zip(*goldens, strict=True)):
            one = tensors[0]
            ends = all(math.prod(each.shape) % each.stride == 0 for each in tensors)
            if not ends or any(each.shape != one.shape for each in tensors):
                return None
            path = f"{self._work}/{prefix}-output-{place}.bin"
            files[path] = b"".join((self.bundle.path / each.path).read_bytes() for each in tensors)
            shape = [one.shape[0] * len(chosen), *one.shape[1:]]
            extra_db = min(each.extra_db for each in tensors)
            changed = {"path": path, "shape": shape, "extra_db": extra_db}
            lines += _list_outputs(one.model_copy(update=changed))
        return Plan("\n".join(lines), files)

    def _make_plan(self, models: Sequence[PlannedModel], parts: Sequence[Plan]) -> Plan:
        sessions = [line for model in models for line in self._list_session(model)]
        outputs = [each.name for each in self.bundle.manifest.outputs]
        state = [
            f"state {outputs.index(output)} {_quote(name)}"
            for output, name in self.bundle.manifest.state.items()
        ]
        lines = [*(f"fetch {_quote(name)}" for name in outputs), *state, *sessions]
        files = {path: data for part in parts for path, data in part.files.items()}
        return Plan("\n".join([*lines, *(part.text for part in parts), ""]), files)

    def _make_golden(
        self, number: int, place: int, feed: Feed, model: PlannedModel | None = None
    ) -> Plan:
        """Return the lines of a golden, for the session of a number."""
        golden = self.bundle.manifest.goldens[number]
        outputs = [line for each in golden.outputs[self.entry.id] for line in _list_outputs(each)]
        prefix, cuts = f"golden-{number}-{place}", []
        if self.entry.buckets:
            dims = (model or self._models[place]).dims
            made = self._make_inputs(self._shapes.pad_feed(feed, dims), prefix)
            cuts = [*self._list_cuts(feed)]
        elif any(tensor.palette for tensor in golden.inputs):
            made = self._make_inputs(feed, prefix)  # The program knows no palettes.
        else:
            made = Plan("\n".join(_format_tensor("input", each) for each in golden.inputs))
        lines = [f"golden {place}", made.text, *outputs, *cuts]
        return Plan("\n".join(lines), made.files)

    def _make_unknown(self, place: int, feed: Feed, prefix: str) -> Plan:
        """Return the lines of inputs whose outputs are unknown."""
        if self.entry.buckets:
            feed = self._shapes.pad_feed(feed, self._models[place].dims)
        made = self._make_inputs(feed, prefix)
        return Plan("\n".join([f"golden {place}", made.text]), made.files)

    def _list_session(self, model: PlannedModel) -> Iterator[str]:
        yield f"session {_quote(model.path)}"
        yield from _list_settings(self.entry.session)
        for key, value in self.list_config().items():
            yield f"config {_quote(key)} {_quote(self._fill_cache(value))}"
        for provider in self.entry.providers:
            if provider.name == CPU:
                continue
            yield f"provider {_quote(provider.name)}"
            for key, value in provider.options.items():
                yield f"option {_quote(key)} {_quote(self._fill_cache(value))}"

    def list_config(self) -> dict[str, str]:
        """Return the session config entries on this device, as the loader sets them."""
        found = {}
        if self._cpu_flags & {"sse2"} and not self._cpu_flags & VNNI:
            found[PRECISE] = "1"  # the default int8 kernels saturate there
        if self.entry.placement == "all" and self.entry.providers[0].name != CPU:
            found["session.disable_cpu_ep_fallback"] = "1"
        return {**found, **self.entry.session.config}

    def _fill_cache(self, value: str) -> str:
        return value.replace(CACHE, self._cache)

    @property
    def keeps_cache(self) -> bool:
        """Whether the variant's settings need a cache folder."""
        given = [*self.entry.session.config.values()]
        given += [value for each in self.entry.providers for value in each.options.values()]
        return any(CACHE in value for value in given)

    def _make_inputs(self, feed: Feed, prefix: str) -> Plan:
        lines, files = [], {}
        for number, (name, array) in enumerate(feed.items()):
            path = f"{self._work}/{prefix}-{number}.bin"
            little = array.astype(array.dtype.newbyteorder("<"), copy=False)
            files[path] = np.ascontiguousarray(little).tobytes()
            lines.append(
                " ".join(
                    ["input", _quote(name), array.dtype.name, _quote(path), *map(str, array.shape)]
                )
            )
        return Plan("\n".join(lines), files)

    def _list_cuts(self, feed: Feed) -> Iterator[str]:
        for output, axis, size in self._list_slices(feed):
            yield f"cut {_quote(output)} {axis} {size}"

    def _read_feed(self, number: int) -> Feed:
        tensors = self.bundle.manifest.goldens[number].inputs
        feed = {tensor.name: read_golden(self.bundle.path, tensor) for tensor in tensors}
        made: Feed = self._shapes.add_masks(feed)
        return made

    def place_sample(self, feed: Feed) -> tuple[bytes, Callable[[Feed], Feed]]:
        """Return a sample as the program takes it, and what makes its outputs of those it puts out.

        Raises:
            ValueError: No model takes it.
        """
        feed = self._shapes.add_masks(feed)
        place = self._find_model(feed)
        cuts = list(self._list_slices(feed)) if self.entry.buckets else []
        if self.entry.buckets:
            feed = self._shapes.pad_feed(feed, self._models[place].dims)
        lines, bodies = [f"sample {place}"], []
        for name, array in feed.items():
            little = array.astype(array.dtype.newbyteorder("<"), copy=False)
            bodies.append(np.ascontiguousarray(little).tobytes())
            words = ["input", _quote(name), array.dtype.name, len(bodies[-1]), *array.shape]
            lines.append(" ".join(map(str, words)))

        def cut(outputs: Feed) -> Feed:
            found = dict(outputs)
            for output, axis, size in cuts:
                found[output] = np.take(found[output], range(size), axis)
            return found

        return b"".join(["\n".join([*lines, "run\n"]).encode(), *bodies]), cut

    def _list_slices(self, feed: Feed) -> Iterator[tuple[str, int, int]]:
        """Yield output, axis and size of what is left of outputs."""
        sizes = self._find_sizes(feed)
        for each in self.entry.slices:
            yield each.output, each.axis, sizes[each.dim]

    def _find_sizes(self, feed: Feed) -> Mapping[str, int]:
        found: Mapping[str, int] = self._shapes.find_sizes(shapes.find_shapes(feed))
        return found

    def _find_model(self, feed: Feed) -> int:
        """Return the index of the model that takes the inputs."""
        if not self.entry.buckets:
            return 0
        dims: list[Any] = [model.dims for model in self._models]
        return int(shapes.choose_bucket(dims, self._find_sizes(feed), exact=self.entry.exact))

    def _can_take(self, model: PlannedModel, feed: Feed) -> bool:
        sizes = self._find_sizes(feed)
        if self.entry.exact:
            return dict(model.dims) == dict(sizes)
        return bool(shapes.can_hold(model.dims, sizes))


def _can_join(feed: Feed, other: Feed, axes: Mapping[str, int]) -> bool:
    """Return whether two samples have the same shapes, and the same values outside the batch."""
    return shapes.find_shapes(feed) == shapes.find_shapes(other) and all(
        name in axes or np.array_equal(array, other[name]) for name, array in feed.items()
    )


def make_canary_plan(work: str) -> Plan:
    """Return the plan for the canary, with its files in a folder on the device."""
    from edgepack.ondevice.harness import edgepack_canary as canary

    return Plan(
        f"fetch y\nsession {work}/canary.onnx\nthreads 1\n"
        "config session.intra_op.allow_spinning 0\n"
        f"golden 0\ninput x float32 {work}/canary.bin 1 48 32 32\n",
        {f"{work}/canary.onnx": canary.MODEL, f"{work}/canary.bin": canary.INPUT.tobytes()},
    )


def add_schedule(plan: Plan, work: str, schedule_ns: Sequence[int]) -> Plan:
    """Return a plan with the moments at which queries arrive, in nanoseconds from the beginning."""
    path = f"{work}/schedule.bin"
    files = {**plan.files, path: np.array(schedule_ns, "<i8").tobytes()}
    return replace(plan, text=f"{plan.text}schedule {_quote(path)}\n", files=files)


def make_cpu_variant(entry: ManifestVariant) -> ManifestVariant:
    """Return a variant as the CPU alone runs it."""
    session = entry.session.model_copy(update={"config": {}})
    return entry.model_copy(update={"providers": [Provider(name=CPU)], "session": session})


def list_files(bundle: Bundle) -> dict[str, str]:
    """Return the files that a device needs to measure a bundle, models and goldens, by digest."""
    wanted = ("model", "golden")
    return {file.path: file.sha256 for file in bundle.manifest.files if file.role in wanted}


def _list_settings(session: SessionSettings) -> Iterator[str]:
    yield f"threads {session.intra_op_num_threads}"
    yield f"level {session.graph_optimization_level}"
    if session.execution_mode == "parallel":
        yield f"parallel {session.inter_op_num_threads}"
    if not session.enable_cpu_mem_arena:
        yield "no-arena"
    if not session.enable_mem_pattern:
        yield "no-pattern"
    if session.log_severity_level is not None:
        yield f"log {session.log_severity_level}"


def _format_tensor(what: str, tensor: GoldenTensor) -> str:
    sizes = map(str, tensor.shape)
    return " ".join([what, _quote(tensor.name), tensor.dtype, _quote(tensor.path), *sizes])


def _list_outputs(tensor: GoldenTensor) -> Iterator[str]:
    yield _format_tensor("output", tensor)
    if tensor.extra_db or tensor.stride > 1:
        yield f"near {tensor.extra_db:g} {tensor.stride}"
    if (several := tensor.quantities) is not None:
        yield " ".join(["quantities", str(several.size), *map("{:g}".format, several.extra_db)])
        yield from (f"channels {count} {quantity}" for count, quantity in several.runs)


def read_golden(folder: Path, tensor: GoldenTensor) -> np.ndarray:
    """Return a golden tensor of a bundle's folder.

    Raises:
        BundleError: Its palette is damaged.
    """
    dtype = np.dtype(tensor.dtype)
    data, little = (folder / tensor.path).read_bytes(), dtype.newbyteorder("<")
    if tensor.palette is None:
        raw = np.frombuffer(data, little)
    else:
        from edgepack.ondevice.runtime.edgepack_loader import unpack_values  # loads onnxruntime

        try:
            raw = unpack_values(data, little, tensor.palette.model_dump())
        except ValueError as error:
            raise BundleError(
                f"{tensor.path!r} is damaged: {error}", hint="build the bundle again"
            ) from error
    return raw.reshape(tensor.shape).astype(dtype, copy=False)


def _quote(text: str) -> str:
    """Return text as one word of a plan."""
    return quote(text, safe="/:,.;=+-_") or "%"
