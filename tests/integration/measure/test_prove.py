"""``edgepack targets prove``: evidence from a device, which here is this machine."""

from __future__ import annotations

import json
import socket

import pytest
from edgepack.cli.main import run
from edgepack.demo import prove as proving
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.errors import DeviceError, RemoteCommandError, UsageError
from edgepack.project.grades import Evidence
from edgepack.project.profile import find_host_target
from edgepack.records.run import Valid

from tests.support.nets import tiny_models

HOST = find_host_target()


@pytest.fixture
def here():
    """This machine as a device of the inventory."""
    return Device("here", LocalEntry(transport="local", target=HOST))


@pytest.fixture
def quiet(monkeypatch):
    """A machine whose measurements are VALID: a quick one on a busy machine is not."""
    real = proving.bench

    def measure(*arguments, **options):
        return real(*arguments, **options).model_copy(update={"verdict": Valid()})

    monkeypatch.setattr(proving, "bench", measure)


@pytest.mark.in_turns
@pytest.mark.slow(reason="measures")
def test_target_when_proven_has_a_file_of_what_every_variant_did(
    here, quiet, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    proof = proving.prove(HOST, here, preset="smoke")
    assert proof.file.name == f"{HOST}-device.json"
    text = (tmp_path / proof.file).read_text()
    seen = Evidence.model_validate_json(text)
    assert (seen.target, seen.how, seen.grade) == (HOST, "device", "verified")
    assert [variant.id for variant in seen.variants] == ["cpu-int8-static", "cpu-fp32"]
    for variant in seen.variants:
        assert variant.golden_sqnr_db > 20
        assert variant.nodes.keys() == {"CPUExecutionProvider"}
        assert variant.metric is not None
        assert (variant.metric.name, variant.metric.samples) == ("top1", 360)
        assert variant.metric.value > 0.95
    assert seen.model == f"digits-1.0.0-{HOST}"
    assert socket.gethostname() not in text
    assert str(tmp_path) not in text


@pytest.mark.in_turns
@pytest.mark.slow(reason="measures")
def test_target_when_proven_with_an_own_project_keeps_it_private(here, quiet, tmp_path):
    project = tiny_models.write_project(tmp_path)
    project.write_text(project.read_text().replace("name: net", "name: secret-net"))
    out = tmp_path / "seen.json"
    proof = proving.prove(HOST, here, project=project, preset="smoke", out=out)
    assert proof.file == out
    assert "secret" not in out.read_text()
    assert proof.evidence.model == "a model of the user's"
    assert {seen.metric.name for seen in proof.evidence.variants} == {"the project's metric"}


@pytest.mark.slow(reason="measures")
def test_target_when_proven_with_a_project_without_samples_has_no_metric(here, quiet, tmp_path):
    project = tiny_models.write_project(tmp_path, samples=False)
    proof = proving.prove("host", here, project=project, preset="smoke", out=tmp_path / "seen.json")
    assert proof.evidence.target == HOST
    assert [seen.metric for seen in proof.evidence.variants] == [None] * len(
        proof.evidence.variants
    )


@pytest.mark.slow(reason="measures")
def test_variant_when_it_does_not_work_there_is_named_with_the_reason(
    here, quiet, tmp_path, monkeypatch
):
    real = proving.bench

    def measure(bundle, device, **options):
        if options["variant"] == "cpu-fp32":
            raise RemoteCommandError("no variant works: its provider is not there", hint="see")
        return real(bundle, device, **options)

    monkeypatch.setattr(proving, "bench", measure)
    proof = proving.prove(HOST, here, preset="smoke", out=tmp_path / "seen.json")
    assert [variant.id for variant in proof.evidence.variants] == ["cpu-int8-static"]
    [unused] = proof.unused
    assert (unused.variant, unused.stage) == ("cpu-fp32", "passed over")
    assert "its provider is not there" in unused.reason


@pytest.mark.in_turns
@pytest.mark.slow(reason="measures")
def test_target_when_no_measurement_is_valid_is_not_proven_and_no_file_is_written(here, tmp_path):
    out = tmp_path / "seen.json"
    with pytest.raises(DeviceError, match="no measurement is VALID") as caught:
        proving.prove(HOST, here, preset="smoke", out=out)
    assert "cpu-fp32: " in caught.value.problem
    assert not out.exists()


def test_target_when_no_variant_works_there_is_not_proven(here, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise RemoteCommandError("no variant works", hint="see")

    monkeypatch.setattr(proving, "bench", refuse)
    with pytest.raises(RemoteCommandError, match="no variant works"):
        proving.prove(HOST, here, preset="smoke", out=tmp_path / "seen.json")


def test_target_when_the_device_is_of_another_is_refused(here, tmp_path):
    with pytest.raises(UsageError, match="is of the target") as caught:
        proving.prove("raspberry-pi", here, out=tmp_path / "seen.json")
    assert "--target raspberry-pi" in caught.value.hint


def test_target_when_the_project_changes_its_variants_is_refused(here, tmp_path):
    change = f"targets: [{{id: {HOST}, variants: [{{id: cpu-fp32, backend: cpu, recipe: fp32}}]}}]"
    project = tiny_models.write_project(tmp_path, change)
    with pytest.raises(UsageError, match="variants of its own"):
        proving.prove(HOST, here, project=project, out=tmp_path / "seen.json")


def test_target_when_there_is_none_of_that_name_is_refused_with_the_ones_there_are(here, tmp_path):
    with pytest.raises(UsageError, match="raspbery-pi") as caught:
        proving.prove("raspbery-pi", here, out=tmp_path / "seen.json")
    assert "raspberry-pi" in f"{caught.value.problem} {caught.value.hint}"


@pytest.mark.in_turns
@pytest.mark.slow(reason="measures")
def test_command_prints_what_was_seen_and_where_it_is(quiet, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "devices.yaml").write_text(
        f"schema_version: 1\ndevices:\n  here: {{transport: local, target: {HOST}}}\n"
    )
    words = ["targets", "prove", HOST, "--device", "here", "--preset", "smoke"]
    assert run(words) == 0
    text = capsys.readouterr().out
    assert "cpu-fp32: 7 nodes on CPUExecutionProvider" in text
    assert f"wrote {HOST}-device.json: add it to targets/evidence" in text
    assert run([*words, "--json", "--out", "again.json"]) == 0
    assert json.loads(capsys.readouterr().out)["evidence"]["how"] == "device"
