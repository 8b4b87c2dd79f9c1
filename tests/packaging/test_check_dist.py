"""What ``make dist`` would let through: it has to name everything that a release must not have."""

from __future__ import annotations

from dataclasses import replace
from email.message import Message

import pytest

from tests.packaging import check_dist

FILES = {
    ".gitignore": b"dist/\n",
    "CHANGELOG.md": b"# Changelog\n\n## 1.2.3 (unreleased)\n\n- x\n\n## 1.2.2 (2026-01-01)\n",
    "LICENSE": b"Apache",
    "README.md": b"# edgepack\n",
    "constraints.txt": b"",
    "hatch_build.py": b"",
    "pyproject.toml": b"",
    "packager/edgepack/__init__.py": b'__version__ = "1.2.3"\n',
    "packager/edgepack/py.typed": b"",
    "packager/decisions/001.md": b"",
    "targets/host.yaml": b"id: host\n",
    "templates/a.j2": b"",
    "examples/digits/README.md": b"",
    "tests/test_x.py": b"",
}
COMMIT = check_dist.Commit("ab" * 20, 1_795_000_000, FILES)  # 2026-11-18


def wheel_files() -> dict[str, bytes]:
    """What a right wheel of the commit holds."""
    about = "edgepack-1.2.3.dist-info"
    return {
        "edgepack/__init__.py": FILES["packager/edgepack/__init__.py"],
        "edgepack/py.typed": b"",
        "edgepack/_data/targets/host.yaml": b"id: host\n",
        "edgepack/_data/templates/a.j2": b"",
        "edgepack/_data/examples/digits/README.md": b"",
        "edgepack/_data/commit.txt": b"ab" * 20 + b" 2026-11-18\n",
        f"{about}/METADATA": b"",
        f"{about}/WHEEL": b"",
        f"{about}/RECORD": b"",
        f"{about}/entry_points.txt": b"",
        f"{about}/licenses/LICENSE": b"Apache",
    }


def wrong_in_wheel(files: dict[str, bytes]) -> list[str]:
    return check_dist.differences(files, check_dist.expected_in_wheel(COMMIT))


def test_wheel_when_right_is_let_through():
    assert wrong_in_wheel(wheel_files()) == []


def test_sdist_when_compared_holds_no_tests_and_decisions():
    left_out = {"tests/test_x.py", "packager/decisions/001.md"}
    assert check_dist.expected_in_sdist(COMMIT).keys() == (FILES.keys() - left_out) | {
        "commit.txt",
        "PKG-INFO",
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"edgepack/__pycache__/a.pyc": b""}, "not expected: edgepack/__pycache__/a.pyc"),
        ({"edgepack/_data/targets/host.yaml": None}, "missing: edgepack/_data/targets/host.yaml"),
        ({"edgepack/py.typed": None}, "missing: edgepack/py.typed"),
        (
            {"edgepack/_data/templates/a.j2": b"x"},
            "not as committed: edgepack/_data/templates/a.j2",
        ),
        ({"edgepack/_data/commit.txt": b"cd"}, "not as committed: edgepack/_data/commit.txt"),
    ],
)
def test_wheel_when_wrong_is_told_by_its_file(change, said):
    files = {**wheel_files(), **change}
    assert wrong_in_wheel({k: v for k, v in files.items() if v is not None}) == [said]


def metadata() -> Message:
    message = Message()
    for line in (
        "Name: edgepack",
        "Version: 1.2.3",
        "Requires-Python: >=3.11",
        "License-Expression: Apache-2.0",
        "License-File: LICENSE",
        "Description-Content-Type: text/markdown",
        *(f"Classifier: Programming Language :: Python :: 3.{minor}" for minor in range(11, 15)),
    ):
        key, _, value = line.partition(": ")
        message[key] = value
    message.set_payload("# edgepack\n## Install\n```\nx\n```\n## Targets\n## How it compares\n")
    return message


def test_metadata_when_right_is_let_through():
    assert check_dist.wrong_metadata(metadata(), "1.2.3") == []


@pytest.mark.parametrize("key", ["Name", "Requires-Python", "License-File", "License-Expression"])
def test_metadata_when_a_field_is_missing_is_told(key):
    message = metadata()
    del message[key]
    [said] = check_dist.wrong_metadata(message, "1.2.3")
    assert said.startswith(f"{key} is None, not ")


def test_metadata_when_a_python_is_not_named_is_told():
    message = metadata()
    del message["Classifier"]
    [said] = check_dist.wrong_metadata(message, "1.2.3")
    assert said.startswith("classifiers name Python ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a page](docs/page.md)", "links to docs/page.md"),
        ("![a picture](docs/a.png)", "links to docs/a.png"),
        ('<img src="docs/a.png">', "links to docs/a.png"),
        ("It is not on PyPI yet", "true in a checkout only: not on PyPI yet"),
        ("```sh\nmake", "cuts a block of code"),
    ],
)
def test_description_when_broken_on_a_package_index_is_told(text, said):
    message = metadata()
    message.set_payload(f"{message.get_payload()}{text}\n")
    [line] = check_dist.wrong_metadata(message, "1.2.3")
    assert said in line


def changelog(heading: str) -> dict[str, bytes]:
    return {**FILES, "CHANGELOG.md": f"# Changelog\n\n## {heading}\n".encode()}


@pytest.mark.parametrize(
    ("tags", "heading", "said"),
    [
        ((), "1.2.3 (unreleased)", None),
        (("v1.2.3",), "1.2.3 (2026-11-23)", None),
        (("v1.2.3",), "1.2.3 (unreleased)", "has no date: 1.2.3 (unreleased)"),
        (("v1.2.4",), "1.2.3 (2026-11-23)", "tag v1.2.4 on 1.2.3"),
        ((), "1.2.4 (unreleased)", "the changelog begins with 1.2.4 (unreleased)"),
    ],
)
def test_release_when_tag_version_and_changelog_differ_is_told(tags, heading, said):
    wrong = check_dist.wrong_release(replace(COMMIT, tags=tags, files=changelog(heading)))
    assert wrong == [] if said is None else (len(wrong) == 1 and said in wrong[0])


def test_lists_when_compared_with_the_repository_name_what_is_there():
    assert [name for name in check_dist.BESIDE_THEM if not (check_dist.ROOT / name).is_file()] == []
