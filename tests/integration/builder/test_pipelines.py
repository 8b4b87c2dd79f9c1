"""Several models as one bundle: built, proven together, and run by the bundle's own loader."""

from __future__ import annotations

import dataclasses
import json
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from edgepack import api
from edgepack.builder.pipeline_runs import ChainSource, PartSource, record_parts
from edgepack.builder.pipelines import PipelineResult, build_pipeline
from edgepack.bundle.archive import open_folder
from edgepack.bundle.reading import load_bundle, verify, verify_any
from edgepack.cli.main import run
from edgepack.errors import (
    BundleError,
    LimitError,
    ModelError,
    ProfileError,
    SamplesError,
    UsageError,
)
from edgepack.model.facts import TensorSpec
from edgepack.ondevice.runtime import edgepack_loader as loader
from edgepack.ondevice.runtime import edgepack_pipeline as pipelines
from edgepack.ondevice.runtime.edgepack_pipeline import (
    Chain,
    LoadError,
    Part,
    Stage,
    StageError,
    load,
    make_infer,
)
from edgepack.project.pipeline import DecodeStage, Pipeline, PipelineSource, RunStage
from onnx import numpy_helper

from tests.support.nets.pipeline_nets import (
    FEATURES,
    HIDDEN,
    PLACES,
    TOKENS,
    decode_by_hand,
    make_audio,
    make_sources,
    write_classifier,
    write_counting_decoder,
    write_translation_project,
    write_wake_project,
)
from tests.support.reports.tiny_bundle import change_manifest

MOST = 12


@pytest.fixture(scope="module")
def wake_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wake")


@pytest.fixture(scope="module")
def wake_result(wake_folder: Path) -> PipelineResult:
    project = write_wake_project(wake_folder, recipes="int8-static fp32")
    return build_pipeline(project, out=wake_folder / "dist")


@pytest.fixture(scope="module")
def wake(wake_result: PipelineResult) -> Path:
    return wake_result.bundles[0].bundle.path


@pytest.fixture(scope="module")
def translation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translation")
    project = write_translation_project(folder, most=MOST)
    return build_pipeline(project, out=folder / "dist").bundles[0].bundle.path


@pytest.fixture
def copy(wake: Path, tmp_path: Path) -> Path:
    """A copy of the wake word's bundle, to break."""
    import shutil

    return Path(shutil.copytree(wake, tmp_path / "copy"))


def run_by_hand(folder: Path, audio: Any) -> list[Any]:
    """Return the scores of frames in order, by onnxruntime and the source models alone."""
    mel, embedding, classifier = (
        ort.InferenceSession(folder / f"{name}.onnx", providers=["CPUExecutionProvider"])
        for name in ("mel", "embedding", "classifier")
    )
    state, scores = np.zeros((1, HIDDEN), np.float32), []
    for frame in audio:
        [heard] = mel.run(None, {"audio": frame[None]})
        [features] = embedding.run(None, {"mel": heard})
        score, state = classifier.run(None, {"x": features, "h": state})
        scores.append(score)
    return scores


def test_pipeline_gives_what_the_source_models_give_one_after_the_other(
    wake: Path, wake_folder: Path
) -> None:
    pipeline = load(wake, {"embedding": "cpu-fp32"})
    audio = make_audio(10, seed=5)
    expected = run_by_hand(wake_folder, audio)
    found = [pipeline({"audio": frame[None]})["score"] for frame in audio]
    assert np.allclose(np.concatenate(found), np.concatenate(expected), atol=1e-4)
    assert [spec.name for spec in pipeline.inputs] == ["audio"]
    assert pipeline.outputs == ["score"]


def test_state_stays_between_calls_until_a_reset(wake: Path) -> None:
    pipeline = load(wake)
    first, second = make_audio(2, seed=6)[:, None]
    alone = pipeline(second)["score"]
    pipeline.reset()
    pipeline(first)
    after = pipeline(second)["score"]
    pipeline.reset()
    assert np.array_equal(pipeline({"audio": second})["score"], alone)
    assert np.abs(after - alone).max() > 0.1


def test_a_part_with_a_state_counts_calls_with_inputs_outside_its_ranges(tmp_path: Path) -> None:
    write_classifier(tmp_path / "classifier.onnx")
    heard = np.random.default_rng(4).uniform(-1, 1, (16, 1, FEATURES)).astype(np.float32)
    np.savez(tmp_path / "heard.npz", x=heard, stream=np.zeros(16))
    (tmp_path / "edgepack.yaml").write_text(
        "schema_version: 1\nname: net\nversion: 1.0.0\nmodel: classifier.onnx\n"
        "state: {h_next: h}\nsamples: {calibration: {path: heard.npz}}\n"
    )
    project = tmp_path / "edgepack.yaml"
    built = api.build(
        project=project, targets=["host"], variants=["cpu-int8-static"], out=tmp_path / "dist"
    )
    model = loader.load(built.bundles[0].bundle.path)
    part = Part(make_infer(model), model.inputs, model.bundle.manifest["state"])
    stage = Stage("classifier", part, {})
    quiet, loud = {"x": heard[0]}, {"x": 9 * heard[0]}
    stage.run(quiet, ["score"], None)
    stage.run(loud, ["score"], None)
    assert model.outside == {"x": 0, "h": 0}
    model.counts_outside = True
    stage.reset()
    stage.run(quiet, ["score"], None)
    assert model.outside == {"x": 0, "h": 0}
    stage.run(loud, ["score"], None)
    assert model.outside == {"x": 1, "h": 0}
    # The state is counted where the session left it.
    stage.kept["h"] = ort.OrtValue.ortvalue_from_numpy(np.full((1, HIDDEN), 5, np.float32))
    stage.run(quiet, ["score"], None)
    assert model.outside == {"x": 1, "h": 1}


def test_each_part_is_calibrated_with_what_the_one_before_gives(
    wake: Path, wake_folder: Path
) -> None:
    mel = ort.InferenceSession(wake_folder / "mel.onnx", providers=["CPUExecutionProvider"])
    heard = [mel.run(None, {"audio": frame[None]})[0] for frame in make_audio(24)[:16]]
    manifest = load_bundle(wake / "parts/embedding").manifest
    low, high = manifest.find_variant("cpu-int8-static").input_ranges["mel"]
    assert (low, high) == pytest.approx((np.min(heard), np.max(heard)), abs=1e-5)
    assert manifest.provenance is not None
    assert manifest.provenance.calibration is not None
    assert manifest.provenance.evaluation is not None
    counts = manifest.provenance.calibration.samples, manifest.provenance.evaluation.samples
    assert counts == (16, 8)


def test_state_is_written_where_a_stream_begins(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "frames.npz",
        x=np.random.default_rng(2).standard_normal((5, 1, FEATURES)).astype(np.float32),
        stream=[4, 4, 4, 9, 9],
    )
    taken = (TensorSpec("x", "float32", (1, FEATURES)), TensorSpec("h", "float32", (1, HIDDEN)))
    model = write_classifier(tmp_path / "classifier.onnx")
    part = PartSource(model, taken, taken, (), {"h_next": "h"})
    stage = RunStage(run="classifier", inputs={"x": "x"}, outputs={"score": "score"})
    pipeline = Pipeline(inputs=["x"], stages=[stage], outputs=["score"])
    source = ChainSource(pipeline, taken[:1], {"classifier": part}, tmp_path, None)
    sets = {"evaluation": PipelineSource(path="frames.npz")}
    recorded = record_parts(source, sets, tmp_path / "recorded")
    folders = sorted((tmp_path / "recorded/evaluation/classifier").iterdir())
    files = [sorted(path.name for path in folder.iterdir()) for folder in folders]
    whole, rest = ["input_0.pb", "input_1.pb"], ["input_0.pb"]
    assert files == [whole, rest, rest, whole, rest]
    assert recorded.counts == {"evaluation": {"classifier": 5}}
    # Goldens are the beginning of the first stream, and not of two.
    assert [feed["x"].shape for feed in recorded.goldens] == [(1, FEATURES)] * 3


def test_first_sample_of_a_decoder_says_what_its_state_is_by_then(tmp_path: Path) -> None:
    """Its very first run has an empty cache, and is no sample."""
    model = write_counting_decoder(tmp_path / "decoder.onnx")
    taken = (
        TensorSpec("ids", "int64", (1, 1)),
        TensorSpec("sum", "float32", (1, 1)),
        TensorSpec("past", "float32", (1, "past")),
    )
    part = PartSource(model, taken, taken, (), {"sum_next": "sum"})
    stage = DecodeStage(
        decode="decoder",
        token="ids",
        logits="logits",
        start=[2],
        end=[0],
        most=4,
        past={"present": "past"},
    )
    given = (TensorSpec("bias", "float32", (1, 1)),)
    stage = stage.model_copy(update={"inputs": {}})
    pipeline = Pipeline(inputs=["bias"], stages=[stage], outputs=["tokens"])
    source = ChainSource(pipeline, given, {"decoder": part}, tmp_path, None)
    np.savez(tmp_path / "bias.npz", bias=np.zeros((2, 1), np.float32))
    recorded = record_parts(
        source, {"calibration": PipelineSource(path="bias.npz")}, tmp_path / "recorded"
    )
    folders = sorted((tmp_path / "recorded/calibration/decoder").iterdir())
    files = [sorted(path.name for path in folder.iterdir()) for folder in folders]
    whole, rest = ["input_0.pb", "input_1.pb", "input_2.pb"], ["input_0.pb", "input_2.pb"]
    # Four runs for each of two calls, of which the first has an empty cache.
    assert files == [whole, rest, rest] * 2
    assert recorded.counts == {"calibration": {"decoder": 6}}
    state = numpy_helper.to_array(onnx.load_tensor(folders[0] / "input_1.pb"))
    assert state.tolist() == [[2]]


def test_every_combination_is_proven(wake: Path) -> None:
    manifest = json.loads((wake / "manifest.json").read_text())
    combinations = [
        f"mel=cpu-fp32 embedding={name} classifier=cpu-fp32"
        for name in ("cpu-int8-static", "cpu-fp32")
    ]
    assert list(manifest["checks"]) == combinations
    int8, fp32 = (manifest["checks"][name]["score"]["min_db"] for name in combinations)
    assert 6 <= int8 < fp32
    assert len(manifest["goldens"]) == 4
    assert load(wake, {"embedding": "cpu-fp32"}).combination == combinations[1]


def test_goldens_of_the_whole_are_as_the_source_models_have_them(
    wake: Path, wake_folder: Path
) -> None:
    pipeline = load(wake, {"embedding": "cpu-fp32"})
    feeds = pipeline.read_golden_inputs()
    frames = np.concatenate([feed["audio"] for feed in feeds])
    assert np.array_equal(frames, make_audio(24)[16:20])
    expected = run_by_hand(wake_folder, frames)
    goldens = pipeline.manifest["goldens"]
    for golden, score in zip(goldens, expected, strict=True):
        [entry] = golden["outputs"][pipeline.combination]
        found = np.fromfile(wake / entry["path"], np.float32).reshape(entry["shape"])
        assert np.allclose(found, score, atol=1e-4)


def forget_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant: each call begins anew."""
    call = Chain.__call__
    monkeypatch.setattr(
        Chain, "__call__", lambda self, inputs: (self.reset(), call(self, inputs))[1]
    )


def leave_a_stage_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant: a stage sees zeros where it should see the one before."""
    stage = Stage.run

    def wrong(self: Stage, feed: dict[str, Any], *rest: Any) -> Any:
        zeros = {name: np.zeros_like(array) for name, array in feed.items()}
        return stage(self, zeros if self.name == "classifier" else feed, *rest)

    monkeypatch.setattr(Stage, "run", wrong)


@pytest.mark.parametrize("plant", [forget_state, leave_a_stage_out])
@pytest.mark.parametrize("variant", ["cpu-fp32", "cpu-int8-static"])
def test_wrong_pipeline_is_refused_although_each_part_is_right(
    plant: Any, variant: str, wake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(LoadError, match="although each part is near its own"):
        load(wake, {"embedding": variant})


def test_bundle_of_parts_of_another_build_is_refused(copy: Path) -> None:
    change_manifest(copy / "parts/mel", lambda manifest: manifest.update(version="9.9.9"))
    with pytest.raises(LoadError, match="part 'mel' is not the one that it was built of"):
        load(copy)
    with pytest.raises(BundleError):
        verify_any(copy)


def test_verify_reads_every_file_of_every_part(copy: Path) -> None:
    verify_any(copy)
    model = next((copy / "parts/classifier/models").glob("*.onnx"))
    data = model.read_bytes()
    model.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(BundleError, match=re.escape("parts/classifier/models")):
        verify_any(copy)
    model.write_bytes(data)
    (copy / "parts/mel/more").write_text("more")
    with pytest.raises(BundleError, match="'parts/mel/more' is in the bundle and not in its"):
        verify_any(copy)


def test_archive_holds_the_whole(wake_result: PipelineResult) -> None:
    with ExitStack() as stack:
        unpacked = open_folder(wake_result.bundles[0].archive, stack)
        assert verify_any(unpacked).digest == wake_result.bundles[0].bundle.digest
        verify(unpacked / "parts/mel")


def test_verify_runs_parts_and_combinations_here(wake: Path) -> None:
    checks = {check.variant: check for check in api.verify(wake).goldens}
    assert [name for name in checks if " " not in name] == [
        "mel=cpu-fp32",
        "embedding=cpu-int8-static",
        "embedding=cpu-fp32",
        "classifier=cpu-fp32",
    ]
    assert sum(" " in name for name in checks) == 2
    assert all(check.passed for check in checks.values())


@pytest.mark.slow(reason="builds three models again")
def test_second_build_has_the_same_bytes(wake_result: PipelineResult, wake_folder: Path) -> None:
    again = build_pipeline(wake_folder / "edgepack.yaml", out=wake_folder / "again")
    assert again.bundles[0].bundle.digest == wake_result.bundles[0].bundle.digest
    archives = (result.bundles[0].archive for result in (again, wake_result))
    assert len({archive.read_bytes() for archive in archives}) == 1


def test_each_loader_says_who_opens_the_other_kind(wake: Path) -> None:
    with pytest.raises(loader.LoadError, match=re.escape("open it with edgepack_pipeline.load")):
        loader.load(wake)
    with pytest.raises(LoadError, match=r"is opened by edgepack_loader\.load"):
        pipelines.load(wake / "parts/mel")
    with pytest.raises(BundleError, match="several models: mel, embedding, classifier"):
        load_bundle(wake)
    assert loader.load(wake / "parts/mel").variant == "cpu-fp32"


def test_readme_of_the_bundle_runs(wake: Path, tmp_path: Path) -> None:
    import subprocess
    import sys

    text = (wake / "README.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    program = tmp_path / "readme.py"
    program.write_text(code)
    done = subprocess.run(
        [sys.executable, "-B", program],
        env={"PYTHONPATH": str(wake)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "'score': (1, 2)" in done.stdout


def test_wrong_inputs_are_said(wake: Path) -> None:
    pipeline = load(wake)
    with pytest.raises(ValueError, match=re.escape("the inputs are ['sound'], expected ['audio']")):
        pipeline({"sound": make_audio(1)})
    with pytest.raises(ValueError, match="is float64, expected float32"):
        pipeline(make_audio(1).astype(np.float64))


def test_greedy_decoding_gives_the_tokens_of_the_source(translation: Path) -> None:
    pipeline = load(translation)
    sources = make_sources(20)
    expected = [decode_by_hand(source, MOST) for source in sources]
    assert [pipeline(source)["tokens"].tolist() for source in sources] == expected
    # Some end by their end token, and some because there are enough.
    assert {len(tokens) == MOST for tokens in expected} == {True, False}
    assert pipeline.chain.tokens == {1: len(expected[-1])}


def test_cache_of_a_decoder_stays_in_onnxruntime(translation: Path) -> None:
    pipeline = load(translation)
    tokens = pipeline(make_sources(1)[0])["tokens"]
    kept = pipeline.chain.stages[1].kept
    assert sorted(kept) == ["past.key", "past.value"]
    assert {type(value) for value in kept.values()} == {ort.OrtValue}
    # The last token, be it the end's, was not fed back.
    assert kept["past.key"].shape()[2] == min(len(tokens) + 1, MOST)


def test_decoder_without_its_cache_is_refused(
    translation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage.run

    def forget(self: Stage, *rest: Any) -> Any:
        found = stage(self, *rest)
        self.kept.update(
            {name: pipelines.make_empty(self.part.specs[name]) for name in self.past.values()}
        )
        return found

    monkeypatch.setattr(Stage, "run", forget)
    with pytest.raises(LoadError, match="the output 'tokens' of the pipeline"):
        load(translation)


def test_decoder_that_fails_says_at_which_token_and_what_to_do(tmp_path: Path) -> None:
    project = write_translation_project(tmp_path, most=PLACES + 9)
    # No token ends it, so that it runs out of places.
    project.write_text(project.read_text().replace("end: 1", f"end: {TOKENS}"))
    with pytest.raises(ModelError) as caught:
        build_pipeline(project, out=tmp_path / "dist")
    place = f"stage 2 (decoder), token {PLACES + 1} of at most {PLACES + 9}: "
    assert place in caught.value.problem
    assert f"most: {PLACES} ends them before that" in caught.value.hint


def test_decoder_that_fails_on_the_device_says_it_too(translation: Path) -> None:
    pipeline = load(translation)
    chain = pipeline.chain
    chain.described = [
        chain.described[0],
        {**chain.described[1], "most": PLACES + 9, "end": [TOKENS]},
    ]
    with pytest.raises(StageError) as caught:
        pipeline(make_sources(1)[0])
    said = str(caught.value)
    assert said.startswith(f"stage 2 (decoder), token {PLACES + 1} of at most {PLACES + 9}: ")
    assert said.endswith(
        f"({PLACES} went well: where the model takes no longer sequences, most:"
        f" {PLACES} ends them before that)"
    )


@pytest.mark.slow(reason="builds two models in two ways")
def test_tokens_of_int8_are_checked_as_far_as_they_stay(tmp_path: Path) -> None:
    project = write_translation_project(tmp_path, recipes="int8-dynamic fp32")
    bundle = build_pipeline(project, out=tmp_path / "dist").bundles[0].bundle
    checks = [check["tokens"] for check in bundle.manifest.checks.values()]
    assert [check.min_db for check in checks] == [None, 200.0]
    lengths = checks[0].leading
    assert len(lengths) == len(bundle.manifest.goldens)
    assert any(lengths)
    pipeline = load(bundle.path)
    assert pipeline.combination == "encoder=cpu-fp32 decoder=cpu-int8-dynamic"
    [entry] = pipeline.manifest["goldens"][0]["outputs"][pipeline.combination]
    # A golden token among those that stay is another one.
    wrong = np.fromfile(bundle.path / entry["path"], np.int64)
    first = next(number for number, length in enumerate(lengths) if length)
    [entry] = pipeline.manifest["goldens"][first]["outputs"][pipeline.combination]
    wrong = np.fromfile(bundle.path / entry["path"], np.int64)
    wrong[0] += 1
    wrong.tofile(bundle.path / entry["path"])
    with pytest.raises(LoadError, match="the output 'tokens'"):
        load(bundle.path)


@pytest.mark.slow(reason="builds three models")
def test_pipeline_without_samples_is_proven_with_random_ones(tmp_path: Path) -> None:
    project = write_wake_project(tmp_path)
    project.write_text(re.sub("samples:.*\n", "", project.read_text()))
    built = build_pipeline(project, out=tmp_path / "dist").bundles[0].bundle
    assert built.manifest.goldens_from == "seeded random"
    assert load(built.path).combination == "mel=cpu-fp32 embedding=cpu-fp32 classifier=cpu-fp32"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_wake_project(tmp_path)


def test_sample_that_the_pipeline_does_not_take_is_said(project: Path) -> None:
    np.savez(project.parent / "first.npz", sound=make_audio(2))
    with pytest.raises(SamplesError, match="has sound, and the pipeline takes audio"):
        build_pipeline(project, out=project.parent / "dist")
    assert not (project.parent / "dist").exists()


def test_error_of_a_part_names_the_part(project: Path) -> None:
    part = project.parent / "embedding.yaml"
    part.write_text(part.read_text() + "limits: {min_sqnr_db: 500}\n")
    with pytest.raises(LimitError, match="1 variants lose too much") as caught:
        build_pipeline(project, out=project.parent / "dist")
    assert caught.value.where == "part embedding"
    # What was written of it is gone, and is not named.
    assert "written" not in caught.value.hint
    assert not (project.parent / "dist").exists()


def test_targets_of_apps_are_refused(project: Path) -> None:
    with pytest.raises(UsageError, match="bundles of several models are for Linux"):
        build_pipeline(project, targets=["android-xnnpack"])


def test_part_that_takes_pictures_is_refused(project: Path) -> None:
    part = project.parent / "mel.yaml"
    part.write_text(
        part.read_text()
        + "preprocess: {in_graph: true}\ninputs: {audio: {image: {resize: {letterbox: 64}}}}\n"
    )
    with pytest.raises(ProfileError, match="parts of a pipeline take tensors") as caught:
        build_pipeline(project)
    assert caught.value.where.startswith(str(part))


def test_commands_for_one_model_name_the_way(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project.parent)
    assert run(["inspect", "--target", "host"]) == 3
    assert "edgepack.yaml:4:1: this project has several models" in capsys.readouterr().err
    assert run(["build", "--variant", "cpu-fp32"]) == 2
    assert "--variant is for one" in capsys.readouterr().err


def test_build_command_writes_the_whole_and_its_parts(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project.parent)
    assert run(["build"]) == 0
    out = capsys.readouterr().out
    last = out.splitlines()[-1]
    line = re.fullmatch(r"(dist/wake-1\.0\.0-[^/]+)  \(wake-1\.0\.0-\S+\.tar\.gz\)", last)[1]
    assert f"{line}/parts/classifier  (" in out
    assert dataclasses.asdict(api.verify(Path(line)))["files"] > 100
