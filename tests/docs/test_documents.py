"""Documents are held to the truth: schemas, exit codes, targets, examples, YAML."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from edgepack import api
from edgepack.base.yaml_source import parse_yaml
from edgepack.bundle.reading import parse_manifest
from edgepack.devices.inventory import Inventory
from edgepack.errors import EdgepackError
from edgepack.project.inputs import Documented
from edgepack.project.outputs import (
    ClassificationOutput,
    DetectionOutput,
    EmbeddingOutput,
    MaskOutput,
    ProbabilityOutput,
    TextOutput,
)
from edgepack.project.profile import find_target_files, load_profile
from edgepack.project.project import Project
from pydantic import BaseModel

from tests.docs import write_api, write_commands, write_schemas, write_targets

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", write_schemas.MODELS)
def test_schema_when_compared_with_its_model_is_up_to_date(name):
    committed = (write_schemas.FOLDER / f"{name}.schema.json").read_text(encoding="utf-8")
    assert committed == write_schemas.schema_text(name), (
        "run .venv/bin/python -m tests.docs.write_schemas"
    )


@pytest.mark.parametrize("page", [write_api, write_commands], ids=["api", "commands"])
def test_page_when_compared_with_the_code_is_up_to_date(page):
    assert page.PAGE.read_text(encoding="utf-8") == page.page_text(), (
        f"run .venv/bin/python -m {page.__name__}"
    )


def test_commands_when_listed_have_each_its_function():
    assert sorted(write_commands.command_names()) == sorted(write_commands.FUNCTIONS)
    assert set(write_commands.FUNCTIONS.values()) <= set(dir(api))


def test_exit_codes_when_read_in_the_reference_are_the_ones_of_the_error_tree():
    text = write_commands.PAGE.read_text(encoding="utf-8")
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert listed == {0, 70, 129, 130, 141, 143} | {
        kind.exit_code for kind in EdgepackError.__subclasses__()
    }


def test_targets_when_read_in_the_readme_are_those_of_profiles_and_evidence():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert write_targets.with_table(text) == text, (
        "run .venv/bin/python -m tests.docs.write_targets"
    )
    listed = re.findall(r"^\| `([a-z0-9-]+)` \|", text, re.MULTILINE)
    assert sorted(listed) == sorted(find_target_files())
    assert all(load_profile(name).variants for name in listed)


REWRITE = "run: .venv/bin/python -m tests.docs.write_examples"


def test_example_manifest_when_read_is_one():
    text = (ROOT / "docs/examples/manifest.json").read_bytes()
    manifest = parse_manifest(text)
    assert manifest.id == "digits-1.0.0-raspberry-pi"
    assert manifest.variants[0].layers
    assert json.loads(text) == manifest.model_dump(mode="json"), REWRITE


def test_example_report_when_read_is_one():
    from edgepack.results.store.documents import read_report

    path = ROOT / "docs/examples/report.json"
    report = read_report(path)
    assert report.bundle == "digits-1.0.0-linux-x86-64"
    assert report.variants[0].layers
    assert json.loads(path.read_bytes()) == report.model_dump(mode="json"), REWRITE


def yaml_blocks(page: str) -> list[tuple[str, str]]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return [
        (page, block)
        for block in re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ]


IMAGE = {"images": {"image": {"resize": {"letterbox": 640}}}}


@pytest.mark.parametrize(
    ("page", "block"),
    [
        block
        for page in ("answers", "metrics", "preprocessing", "streams", "tuning")
        for block in yaml_blocks(f"{page}.md")
    ],
)
def test_lines_of_a_project_when_read_in_a_page_are_some(page, block):
    lines = parse_yaml(block, name=page).values
    project = {"schema_version": 1, "name": "x", "model": "x.onnx", "inputs": IMAGE, **lines}
    assert Project.model_validate(project)


@pytest.mark.parametrize(
    ("page", "transports"), [("phones.md", {"adb", "apple"}), ("devices.md", {"ssh", "labgrid"})]
)
def test_devices_when_read_in_a_page_are_some(page, transports):
    [(_, block)] = yaml_blocks(page)
    found = parse_yaml(block, name=page).parse(Inventory).devices.values()
    assert {entry.transport for entry in found} == transports


KEYS: dict[tuple[str, str], type[BaseModel]] = {
    ("answers.md", "Classification"): ClassificationOutput,
    ("answers.md", "Detection"): DetectionOutput,
    ("answers.md", "Embedding"): EmbeddingOutput,
    ("answers.md", "Mask"): MaskOutput,
    ("answers.md", "Probability"): ProbabilityOutput,
    ("answers.md", "Text"): TextOutput,
}


@pytest.mark.parametrize(("page", "section"), KEYS)
def test_keys_when_read_in_a_page_have_the_defaults_of_the_model(page, section):
    model = KEYS[page, section]
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    part = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    listed = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]*?) \|$", part, re.MULTILINE))
    shared = {"kind", *Documented.model_fields}
    fields = {name: field for name, field in model.model_fields.items() if name not in shared}
    assert list(listed) == list(fields)
    for name, field in fields.items():
        default = str(field.get_default()).lower()
        assert listed[name].strip("`").startswith("none" if field.is_required() else default), name
