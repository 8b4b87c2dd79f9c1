"""Whether a model's outputs are right at a point of a sweep: for a batch, or inputs of other sizes.

Of a batch of golden samples, each one's outputs have to be as near its golden ones as the variant's
limit asks of any. For other shapes there are no golden outputs: they have to be finite, of the
shapes that the model declares, the same in a second run, and near those of the variant's file on
the CPU without optimizations, which decides a bundle's limits, too. So is a batch whose outputs
nothing tells apart by samples.

Needs what the loader needs: Python 3.8, numpy and onnxruntime.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

import edgepack_batches as batches  # type: ignore[import-not-found]
import edgepack_joined as joining  # type: ignore[import-not-found]
import edgepack_load as load  # type: ignore[import-not-found]
import edgepack_loader as loader  # type: ignore[import-not-found]
import edgepack_providers as providers  # type: ignore[import-not-found]
import edgepack_shapes as shapes  # type: ignore[import-not-found]

ALONE = "finite, of the declared shapes, the same in two runs"

Json = Dict[str, Any]


class Point(NamedTuple):
    """One point of a sweep."""

    feeds: List[loader.Arrays]
    """The inputs to time."""
    checked: Json
    """``how``, ``nearness_db``, ``needed_db``, and ``problem``: empty if the outputs are right."""


class WrongError(Exception):
    """Outputs are wrong; the text says which, and how."""


def check_point(model: Any, wanted: Mapping[str, Sequence[int]], batch: int) -> Point:
    """Return the golden inputs in other shapes, and whether the outputs for them are right.

    Args:
        model: The loader's.
        wanted: The shape of each input.
        batch: The size of the first input's first dimension, if samples are to be joined so far; 0
            if the shapes mean something else.

    Raises:
        ValueError: The inputs cannot have these shapes.
    """
    checker = _Checker(model)
    axes = model.joining.axes
    first = shapes.find_shapes(model.bundle.read_golden_inputs(0))
    golden_batch = first[model.inputs[0].name][0] if batch and axes else 0
    if golden_batch and batch % golden_batch == 0:
        count = batch // golden_batch
        joined = [
            batches.join([sample.feed for sample in model.joining.choose(begin, count)], axes)
            for begin in range(len(model.joining.samples))
        ]
        made = {name: list(shape) for name, shape in shapes.find_shapes(joined[0]).items()}
        if made != dict(wanted):
            raise ValueError(f"joined golden samples are {made}, not {dict(wanted)}")
        feeds = [model.check_inputs(feed) for feed in joined]
        return Point(feeds, checker.judge(lambda: checker.check_batches(feeds, count)))
    goldens = map(model.bundle.read_golden_inputs, range(model.bundle.goldens))
    feeds = [model.check_inputs(load.reshape_feed(feed, wanted)) for feed in goldens]
    if {name: list(shape) for name, shape in first.items()} == dict(wanted):
        return Point(feeds, checker.judge(checker.check_goldens))
    return Point(feeds, checker.judge(lambda: checker.check_alone(feeds)))


class _Checker:
    """Checks the outputs of one variant; remembers how, and the worst that it found."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.needed_db = model.entry["min_sqnr_db"]
        self.how = ""
        self.nearness_db = loader.EQUAL_DB

    def judge(self, check: Any) -> Json:
        """Return what a check found.

        Raises:
            ValueError: Onnxruntime, or the model, does not take the inputs.
        """
        problem = ""
        try:
            check()
        except WrongError as wrong:
            problem = str(wrong)
        return {
            "how": self.how,
            "nearness_db": max(self.nearness_db, joining.INCOMPARABLE_DB),
            "needed_db": self.needed_db,
            "problem": problem,
        }

    def check_goldens(self) -> None:
        """Check golden samples as they are."""
        self.how = "golden outputs"
        for index in range(self.model.bundle.goldens):
            self._note(self.model.measure_golden_db(index), f"for golden sample {index + 1}")

    def check_batches(self, feeds: Sequence[loader.Arrays], count: int) -> None:
        """Check batches of golden samples, as ``Joining.choose`` has them, sample by sample."""
        if count == 1:
            self.check_goldens()
            return
        joined = self.model.joining
        names = [spec.name for spec in self.model.outputs]
        untold = [name for name in names if name not in joined.output_axes]
        if not joined.output_axes or not joined.are_told_apart:
            self.check_alone(feeds)
            self.how += f"; samples of a batch cannot be told apart in {', '.join(names)}"
            return
        self.how = "golden outputs, for each sample of the batch"
        if untold:
            self.how += f"; not of {', '.join(untold)}, where samples cannot be told apart"
        for begin, feed in enumerate(feeds):
            outputs = self.model.run(feed)
            try:
                parts = joined.split(outputs, count)
            except loader.Refused as refusal:
                raise WrongError(str(refusal)) from refusal
            for place, sample in enumerate(joined.choose(begin, count)):
                found_db = joined.compute_closeness_db(sample, parts[place])
                self._note(found_db, f"for sample {place + 1} of {count} in the batch")

    def check_alone(self, feeds: Sequence[loader.Arrays]) -> None:
        """Check inputs for which there are no golden outputs."""
        self.how = ALONE
        allowed = load.find_nonfinite_goldens(self.model)
        for feed in feeds:
            outputs = self.model.run(feed)
            self._check_shapes(feed, outputs)
            wrong = {n for n, array in outputs.items() if not load.is_finite(array)} - allowed
            if wrong:
                raise WrongError(f"{', '.join(sorted(wrong))} is NaN or infinite")
            self._note(self.model.compare(outputs, self.model.run(feed)), "in a second run")
        try:
            plain = _open_plain(self.model)
            expected = plain.run(feeds[0])
        except (loader.Refused, *loader.ORT_ERRORS) as error:
            self.how += f"; not compared with its file on the CPU: {' '.join(str(error).split())}"
            return
        self.how += ", near its file on the CPU without optimizations"
        found_db = self.model.compare(expected, self.model.run(feeds[0]))
        self._note(found_db, "beside its file on the CPU without optimizations")

    def _check_shapes(self, feed: loader.Arrays, outputs: loader.Arrays) -> None:
        sizes = self.model.bundle.shapes.find_sizes(shapes.find_shapes(feed))
        for spec in self.model.outputs:
            shape = outputs[spec.name].shape
            known = [sizes.get(dim, dim) for dim in spec.shape]
            pairs = zip(known, shape)  # noqa: B905 (strict is unknown to Python 3.8)
            fits = all(isinstance(want, str) or want == size for want, size in pairs)
            if len(known) != len(shape) or not fits:
                raise WrongError(f"the output {spec.name!r} is {list(shape)}, not {known}")

    def _note(self, found_db: float, which: str) -> None:
        self.nearness_db = min(self.nearness_db, found_db)
        if not found_db >= self.needed_db:  # so that NaN is wrong, too
            raise WrongError(
                f"outputs {which} are {max(found_db, joining.INCOMPARABLE_DB):.1f} dB near the"
                f" right ones, {self.needed_db:.1f} dB are needed"
            )


def _open_plain(model: Any) -> Any:
    """Return the variant's file on the CPU, without optimizations of the graph.

    Raises:
        Refused: It does not run there.
    """
    [entry] = model.bundle.list_variants(model.variant)
    threads = entry["session"]["intra_op_num_threads"]
    session = {"intra_op_num_threads": threads, "graph_optimization_level": "disabled"}
    plain = {
        **entry,
        "providers": [{"name": providers.CPU, "options": {}}],
        "session": {**session, "config": {}},
    }
    sessions = [loader.open_session(model.bundle, one) for one in loader.split_models(plain)]
    return loader.Model(model.bundle, plain, sessions)
