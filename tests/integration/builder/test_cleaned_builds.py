"""Builds of what exporters leave: bundle, plan, inspection and init name each cleaning."""

from __future__ import annotations

import json

import numpy as np
from edgepack.base.progress import Silent
from edgepack.builder.build import build, dry_run
from edgepack.builder.cache import open_own_cache
from edgepack.builder.cleaning import clean_source
from edgepack.builder.inspect import inspect
from edgepack.builder.scaffold import init
from edgepack.project.loading import make_project, read_project
from edgepack.trying.verify import verify as verify_here

from tests.support.nets import classical_nets, tiny_models

LABELS = ["no", "yes", "perhaps"]
DONE = (
    "named-dims: the nameless first dimension is batch; zip-map-to-tensor: 'probabilities' is a"
    " tensor of 3 columns; labels-to-numbers: 'label' numbers 3 labels"
)


class Notes(Silent):
    """Keeps what is noted."""

    def __init__(self):
        self.lines = []

    def note(self, text):
        self.lines.append(text)


def save(folder):
    return classical_nets.save_classifier(folder / "net.onnx", LABELS)


def test_bundle_of_a_classifier_has_tensors_and_its_labels(tmp_path):
    result = build(save(tmp_path), targets=["host"], out=tmp_path / "dist")
    [built] = result.bundles
    manifest = built.bundle.manifest
    assert [output.dtype for output in manifest.outputs] == ["int64", "float32"]
    assert (built.bundle.path / "files/labels.txt").read_text().split() == LABELS
    described = manifest.output_descriptions
    assert described["probabilities"].kind == "classification"
    assert {each.labels for each in described.values()} == {"labels.txt"}
    assert manifest.model.name == "net.onnx"
    assert manifest.steps[0].startswith("source net.onnx: sha256 ")
    assert manifest.steps[1].startswith("cleaned-")
    assert manifest.steps[1].endswith(DONE)
    verify_here(built.bundle.path)


def test_descriptions_of_the_project_stay_and_its_files_are_not_replaced(tmp_path):
    save(tmp_path)
    (tmp_path / "labels.txt").write_text("one\ntwo\nthree\n")
    project = tmp_path / "edgepack.yaml"
    project.write_text(
        "schema_version: 1\nname: net\nmodel: net.onnx\nfiles: [labels.txt]\n"
        "outputs: {probabilities: {kind: classification, labels: labels.txt, top: 1}}\n"
    )
    [built] = build(project=project, targets=["host"], out=tmp_path / "dist").bundles
    described = built.bundle.manifest.output_descriptions
    assert described["probabilities"].top == 1
    assert described["label"].labels == "model-labels.txt"
    files = built.bundle.path / "files"
    assert (files / "labels.txt").read_text() == "one\ntwo\nthree\n"
    assert (files / "model-labels.txt").read_text().split() == LABELS


def test_plan_and_inspection_name_each_cleaning(tmp_path):
    source = save(tmp_path)
    made = dry_run(source, targets=["host"]).before
    assert made[1].endswith(DONE)
    assert any(DONE in text for text in dry_run(source, targets=["host"]).describe())
    inspection = inspect(source)
    assert inspection.made == made
    assert [spec.dtype for spec in inspection.facts.outputs] == ["int64", "float32"]
    assert not inspection.findings


def test_progress_notes_the_cleaning(tmp_path):
    notes = Notes()
    clean_source(make_project(save(tmp_path)), open_own_cache(), notes)
    assert any(DONE in line for line in notes.lines)


def test_a_model_without_need_is_taken_as_it_is(tmp_path):
    source = tiny_models.conv_net(tmp_path / "net.onnx")
    loaded = make_project(source)
    assert clean_source(loaded, open_own_cache(), Silent()) is loaded
    assert dry_run(source, targets=["host"]).before == ()


def test_init_writes_the_names_that_a_build_knows(tmp_path):
    path = init(classical_nets.save_counted(tmp_path / "net.onnx"))
    assert "unk__" not in path.read_text()
    assert "batch" in path.read_text()


def test_samples_fit_the_cleaned_model(tmp_path):
    save(tmp_path)
    x = np.random.default_rng(1).standard_normal((12, 1, 4)).astype(np.float32)
    np.savez(tmp_path / "s.npz", x=x)
    project = tmp_path / "edgepack.yaml"
    project.write_text(
        "schema_version: 1\nname: net\nmodel: net.onnx\ntargets: [host]\n"
        "samples: {evaluation: {path: s.npz}}\n"
    )
    [built] = build(project=project, out=tmp_path / "dist").bundles
    manifest = json.loads((built.bundle.path / "manifest.json").read_text())
    assert manifest["goldens_from"] == "samples"
    assert read_project(project).model_path == tmp_path / "net.onnx"
