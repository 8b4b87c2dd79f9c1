"""One build and one run in which a variant comes to each stage: the same word everywhere."""

from __future__ import annotations

import json
import re
from typing import get_args

import pytest
from edgepack.bundle.reading import load_bundle
from edgepack.bundle.unused import Stage
from edgepack.cli.main import run
from edgepack.project.profile import find_target_file

from tests.support.nets import tiny_models

STAGES = {
    "xnnpack-fp32": ("refused", "XnnpackExecutionProvider would take"),
    "cpu-int4-weight": ("failed", "int4-weight"),
    "cpu-int8-static": ("missed", "the limit is 100 dB"),
    "cpu-fp32-spare": ("left out", "holds 2 at most"),
    "cpu-fp32-absent": ("passed over", "no_such_flag"),
}
CPU = "providers: [{name: CPUExecutionProvider}]"
INT8 = "{activations: uint8, weights: int8, symmetric: false, per_channel: true}"
VARIANTS = f"""bundle: {{variants: 2, goldens: 1}}
variants:
  - id: xnnpack-fp32
    backend: xnnpack
    recipe: fp32
    providers: [{{name: XnnpackExecutionProvider}}, {{name: CPUExecutionProvider}}]
  - {{id: cpu-int4-weight, backend: cpu, recipe: int4-weight, {CPU}}}
  - {{id: cpu-int8-static, backend: cpu, recipe: int8-static, dialect: {INT8}, {CPU}}}
  - {{id: cpu-fp32-absent, backend: cpu, recipe: fp32, {CPU}, requires: {{cpu: [no_such_flag]}}}}
  - {{id: cpu-fp32, backend: cpu, recipe: fp32, {CPU}}}
  - {{id: cpu-fp32-spare, backend: cpu, recipe: fp32, {CPU}}}
"""


@pytest.mark.slow(reason="takes seconds")
def test_variant_when_it_is_not_used_has_its_stage_in_json_manifest_and_page(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    profile = find_target_file("linux-x86-64").read_text()
    (tmp_path / "targets").mkdir()
    own = re.sub(r"variants:\n.*?(?=^sources:)", VARIANTS, profile, flags=re.DOTALL | re.MULTILINE)
    (tmp_path / "targets" / "linux-x86-64.yaml").write_text(own)
    project = tiny_models.write_project(tmp_path, "limits: {min_sqnr_db: 100}")
    assert [stage for stage, _ in STAGES.values()] == [*get_args(Stage)]
    built = {name: found for name, found in STAGES.items() if found[0] != "passed over"}
    arguments = ["--project", str(project), "--target", "linux-x86-64"]

    assert run(["build", *arguments, "--json"]) == 6
    output = capsys.readouterr()
    said = json.loads(output.out)
    assert told(said["unused"]["linux-x86-64"]) == expected(built)
    assert told(said["bundles"][0]["bundle"]["manifest"]["unused"]) == expected(built)
    bundle = load_bundle(tmp_path / "dist" / "net-1.2.3-linux-x86-64")
    for unused in bundle.manifest.unused:
        stage, reason = built[unused.variant]
        assert unused.stage == stage
        assert reason in unused.reason
        assert f"{stage.capitalize()}: {unused.variant}, because" in readme(bundle.path)
    assert run(["build", *arguments]) == 6
    printed = capsys.readouterr().out
    assert all(f"\n{stage} {name}: " in printed for name, (stage, _) in built.items())

    assert run(["bench", str(bundle.path), "--device", "local", "--preset", "smoke", "--json"]) in (
        0,
        11,
    )
    report = json.loads(capsys.readouterr().out)
    assert report["variant_used"] == "cpu-fp32"
    assert told(report["unused"]) == expected(STAGES)
    assert run(["report"]) == 0
    [page] = tmp_path.rglob("*.html")
    text = page.read_text()
    for name, (stage, _) in STAGES.items():
        assert f"<bdi>{name}</bdi></span>, {stage}: " in text


def told(unused):
    return {each["variant"]: each["stage"] for each in unused}


def expected(stages):
    return {name: stage for name, (stage, _) in stages.items()}


def readme(folder):
    return (folder / "README.md").read_text()
