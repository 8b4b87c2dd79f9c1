"""What documents name is there: files, headings, commands, options, targets of make, paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import write_rooms, write_ssh
from tests.docs.references import (
    ROOT,
    broken_commands,
    broken_functions,
    broken_labels,
    broken_links,
    broken_options,
    broken_paths,
    broken_targets,
    unknown_bundles,
)

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
DOCUMENTS = [
    *PAGES,
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "examples").rglob("*.md")),
    *sorted((ROOT / "packager" / "decisions").glob("*.md")),
]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_links_when_followed_lead_to_files_and_headings(path):
    assert broken_links(path, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_commands_when_parsed_are_taken(path):
    text = path.read_text(encoding="utf-8")
    assert broken_commands(text) == []
    assert broken_targets(text) == []
    assert broken_options(text) == []
    assert broken_functions(text) == []
    assert unknown_bundles(text) == []


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_paths_when_looked_for_are_there(path):
    assert broken_paths(path, path.read_text(encoding="utf-8")) == []


def test_drawing_when_its_labels_are_looked_for_has_paths_that_are_there():
    drawing = (ROOT / "docs" / "architecture.svg").read_text(encoding="utf-8")
    assert drawing.count("/</text>") > 10
    assert broken_labels(drawing) == []
    assert broken_labels(drawing.replace(">steps/<", ">steps/zzz/<")) == ["steps/zzz/"]


PAGE = ROOT / "docs" / "page.md"


@pytest.mark.parametrize(
    ("check", "text", "wrong"),
    [
        (broken_links, "[x](goldens.md) [y](nowhere.md)", ["nowhere.md"]),
        (broken_links, "[x](goldens.md#size) [y](goldens.md#weight)", ["goldens.md#weight"]),
        (broken_links, "# A `b`, c\n[x](#a-b-c) [y](#a-b-d)", ["#a-b-d"]),
        (broken_paths, "`docs/goldens.md`, `docs/silver.md`", ["docs/silver.md"]),
        (broken_paths, "`steps/recipes/<name>.py`, `steps/zzz/<name>.py`", ["steps/zzz/<name>.py"]),
        (broken_paths, "`base/{files,zzz}.py`", ["base/{files,zzz}.py"]),
        (broken_paths, "`planner.py`, `planner_of_old.py`", ["planner_of_old.py"]),
    ],
)
def test_reference_when_it_is_planted_broken_is_found(check, text, wrong):
    assert check(PAGE, text) == wrong


@pytest.mark.parametrize(
    "line",
    [
        "edgepack biuld",
        "edgepack device fly pi5",
        "edgepack bench dist/a --device pi5 --prset quick",
        "edgepack bench dist/a --device pi5 --process-runs many",
        "edgepack bench dist/a",
        "cd /tmp && edgepack runs list --limit x | head -1",
        "edgepack --verzion",
    ],
)
def test_command_when_it_is_planted_broken_is_found(line):
    assert len(broken_commands(f"```sh\n{line}\n```\n")) == 1


def test_options_in_running_text_when_no_command_has_them_are_found():
    assert broken_options("`push --canary 2`, `--canary`, `provision --wheel FILE`") == []
    text = "`push --budget 2`, `--canari`, `provision --ofline`, `jq --raw`"
    assert broken_options(text) == ["push --budget 2", "--canari", "provision --ofline"]


def test_bundle_when_it_is_planted_with_no_target_is_found():
    assert unknown_bundles("dist/a-1.0.0-jetson dist/a-1.0.0-orin") == ["a-1.0.0-orin"]


def test_command_in_running_text_when_it_lacks_arguments_is_taken_and_no_more():
    assert broken_commands("`edgepack COMMAND --help`") == []
    assert (
        broken_commands("`edgepack push`, `edgepack bench --tune`, `edgepack runs prune ...`") == []
    )
    assert len(broken_commands("`edgepack push --faster`, `edgepack pusch`")) == 2
    assert broken_targets("`make lab`, `make lap`, `make test PYTHON=python3`") == ["make lap"]


def test_rooms_when_compared_with_docstrings_and_the_table_of_the_test_are_up_to_date():
    text = write_rooms.DOCUMENT.read_text(encoding="utf-8")
    assert write_rooms.with_table(text) == text, "run .venv/bin/python -m tests.docs.write_rooms"


def test_keywords_of_ssh_when_compared_with_what_becomes_of_them_are_up_to_date():
    text = write_ssh.DOCUMENT.read_text(encoding="utf-8")
    assert write_ssh.with_table(text) == text, "run .venv/bin/python -m tests.docs.write_ssh"


def test_room_when_its_docstring_is_planted_without_a_sentence_is_refused(tmp_path, monkeypatch):
    (tmp_path / "attic").mkdir()
    (tmp_path / "attic" / "__init__.py").write_text('"""No sentence"""\n')
    monkeypatch.setattr(write_rooms, "PACKAGE", tmp_path)
    with pytest.raises(ValueError, match="docstring"):
        write_rooms.job("attic")
    (tmp_path / "attic" / "__init__.py").write_text('"""Keeps ``a.yaml`` here. And more."""\n')
    assert write_rooms.job("attic") == "Keeps `a.yaml` here."


def test_function_when_the_api_has_it_not_is_found():
    assert broken_functions("`edgepack.api.push` and `edgepack.api.posh(x)`") == ["posh"]
