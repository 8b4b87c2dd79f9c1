"""``edgepack targets``: the profiles there are, as they are listed and shown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgepack.backends.targets import check_target
from edgepack.errors import ProfileError
from edgepack.project.grades import Evidence, find_grades, read_evidence
from edgepack.project.profile import Profile, find_target_files, load_profile


@dataclass(frozen=True)
class ListedTarget:
    """A target in short; for an unusable profile only the first field, the file and the problem."""

    id: str
    title: str
    grades: dict[str, str]
    """By variant, best first, how well it is tested: a word of
    :data:`edgepack.project.grades.Grade`."""
    file: str
    error: str
    """Why the profile cannot be used; empty if it can."""


def list_targets() -> list[ListedTarget]:
    """Return all targets: the variants, their grades and the profile's path of each."""
    evidence = read_evidence()
    return [_list_target(name, path, evidence) for name, path in find_target_files().items()]


def _list_target(name: str, path: Path, evidence: list[Evidence]) -> ListedTarget:
    try:
        profile = check_target(path)
    except ProfileError as error:
        return ListedTarget(name, "", {}, str(path), f"{error.where or path}: {error.problem}")
    return ListedTarget(
        id=name,
        title=profile.title,
        grades={**find_grades(profile, evidence, path)},
        file=str(path),
        error="",
    )


def show_target(target: str) -> str:
    """Return the text of a target's profile, after a comment that names the file.

    Args:
        target: Its id, or ``host``.

    Raises:
        UsageError: There is no such target.
        ProfileError: Its file is wrong.
    """
    path = find_target_files()[load_profile(target).id]
    return f"# {path}\n{path.read_text(encoding='utf-8').rstrip()}"


def make_target_schema() -> dict[str, Any]:
    """Return the JSON Schema of profiles."""
    return Profile.model_json_schema()
