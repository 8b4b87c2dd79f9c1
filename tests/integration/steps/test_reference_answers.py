"""fp32's answers, kept for all evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edgepack.errors import StepError
from edgepack.model.facts import read_signature
from edgepack.model.reading import read_outline
from edgepack.model.running import make_session, run_session
from edgepack.samples.sample_set import SampleSet, write_sample_set
from edgepack.steps.proofs import reference_answers
from edgepack.steps.proofs.evaluation import Evaluation
from edgepack.steps.proofs.reference_answers import ANSWERS, ReferenceAnswers, read_answers

from tests.support.nets import tiny_models

COUNT = 12


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Path]:
    model, samples = tmp_path / "model", tmp_path / "samples"
    model.mkdir()
    samples.mkdir()
    tiny_models.conv_net(model / "model.onnx")
    signature, _ = read_signature(read_outline(model / "model.onnx"))
    images = tiny_models.images(COUNT, seed=3)
    every = ((str(n), {"image": image[None]}) for n, image in enumerate(images))
    write_sample_set(samples, signature, every)
    return {"model": model, "samples": samples}


def run(inputs: dict[str, Path], out: Path) -> Path:
    out.mkdir()
    step = ReferenceAnswers("any")
    step.run(inputs, out)
    step.verify(inputs, out)
    return out


def test_answers_are_those_of_the_model(inputs: dict[str, Path], tmp_path: Path) -> None:
    found = list(read_answers(run(inputs, tmp_path / "out")) or ())
    session = make_session(inputs["model"] / "model.onnx")
    expected = [run_session(session, feed) for feed in SampleSet.read(inputs["samples"])]
    assert len(found) == COUNT
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_answers_when_too_large_are_not_kept_and_evaluations_run_the_model(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = run(inputs, tmp_path / "kept")
    monkeypatch.setattr(reference_answers, "MOST_BYTES", 40)
    nothing = run(inputs, tmp_path / "nothing")
    assert read_answers(nothing) is None
    step = Evaluation(None, "scores", (), None, "any")
    both = {**inputs, "reference": inputs["model"]}
    session = make_session(inputs["model"] / "model.onnx")
    samples = SampleSet.read(inputs["samples"])
    results = [
        step.measure(session, samples, {**both, "answers": answers}) for answers in (kept, nothing)
    ]
    assert results == [step.measure(session, samples, both)] * 2


def test_answers_when_one_is_missing_are_refused(inputs: dict[str, Path], tmp_path: Path) -> None:
    out = run(inputs, tmp_path / "out")
    with np.load(out / ANSWERS) as found:
        fewer = {name: found[name] for name in found.files if name != f"{COUNT - 1}-0"}
    np.savez(out / ANSWERS, **fewer)
    with pytest.raises(StepError, match=f"{COUNT - 1} answers to {COUNT} samples"):
        ReferenceAnswers("any").verify(inputs, out)


def test_evaluation_compares_with_the_kept_answers(inputs: dict[str, Path], tmp_path: Path) -> None:
    out = run(inputs, tmp_path / "out")
    with np.load(out / ANSWERS) as found:
        changed = {name: found[name] for name in found.files}
    changed["3-0"] = changed["3-0"][:, ::-1]
    np.savez(out / ANSWERS, **changed)
    step = Evaluation(None, "scores", (), None, "any")
    result, _ = step.measure(
        make_session(inputs["model"] / "model.onnx"),
        SampleSet.read(inputs["samples"]),
        {**inputs, "reference": inputs["model"], "answers": out},
    )
    assert result["agreement"] == pytest.approx((COUNT - 1) / COUNT)


def test_answers_that_will_be_too_large_are_known_after_the_first_sample(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames: list[int] = []
    every = reference_answers.run_streams

    def count(*given: Any) -> Iterator[Any]:
        for each in every(*given):
            frames.append(1)
            yield each

    monkeypatch.setattr(reference_answers, "run_streams", count)
    monkeypatch.setattr(reference_answers, "MOST_BYTES", COUNT * 16 - 1)
    assert read_answers(run(inputs, tmp_path / "nothing")) is None
    assert len(frames) == 1
    monkeypatch.setattr(reference_answers, "MOST_BYTES", COUNT * 16)
    assert read_answers(run(inputs, tmp_path / "all")) is not None
