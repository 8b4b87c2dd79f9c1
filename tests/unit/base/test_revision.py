"""The commit is read as git would tell it, whatever state a checkout is in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import edgepack
import pytest
from edgepack.base.revision import Revision, format_version, read_revision

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")


def git(folder: Path, *words: str) -> str:
    environment = {
        **os.environ,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        **{
            f"GIT_{who}_{what}": "x@x"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        },
    }
    done = subprocess.run(
        ["git", *words], cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def checkout(folder: Path, *options: str, messages: tuple[str, ...] = ("first", "second")) -> Path:
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main", *options)
    for message in messages:
        git(folder, "commit", "--quiet", "--allow-empty", "-m", message)
    return folder


def as_committed(folder: Path) -> Path:
    return folder


def with_packed_references(folder: Path) -> Path:
    git(folder, "pack-refs", "--all")
    assert not (folder / ".git/refs/heads/main").exists()
    return folder


def packed(folder: Path) -> Path:
    git(folder, "gc", "--quiet")
    assert not (folder / ".git/objects" / git(folder, "rev-parse", "HEAD")[:2]).exists()
    return folder


def detached(folder: Path) -> Path:
    git(folder, "checkout", "--quiet", "--detach", "HEAD~1")
    return folder


def on_a_branch_that_names_another(folder: Path) -> Path:
    git(folder, "symbolic-ref", "refs/heads/alias", "refs/heads/main")
    git(folder, "symbolic-ref", "HEAD", "refs/heads/alias")
    return folder


def in_a_worktree(folder: Path) -> Path:
    git(folder, "worktree", "add", "--quiet", "-b", "side", "../side")
    git(folder.parent / "side", "commit", "--quiet", "--allow-empty", "-m", "third and longest")
    assert (folder.parent / "side" / ".git").is_file()
    return folder.parent / "side"


def in_a_packed_worktree(folder: Path) -> Path:
    tree = in_a_worktree(folder)
    git(folder, "gc", "--quiet")
    return tree


@needs_git
@pytest.mark.parametrize(
    "state",
    [
        as_committed,
        with_packed_references,
        packed,
        detached,
        on_a_branch_that_names_another,
        in_a_worktree,
        in_a_packed_worktree,
    ],
)
def test_revision_of_a_checkout_is_gits(tmp_path, state):
    folder = state(checkout(tmp_path / "checkout"))
    assert read_revision(folder) == Revision(git(folder, "rev-parse", "HEAD"))


@needs_git
def test_revision_when_names_are_sha256_is_gits(tmp_path):
    folder = packed(checkout(tmp_path / "checkout", "--object-format=sha256"))
    commit = git(folder, "rev-parse", "HEAD")
    assert len(commit) == 64
    assert read_revision(folder) == Revision(commit)


@needs_git
def test_revision_when_there_is_none_is_none(tmp_path):
    assert read_revision(tmp_path) is None
    assert read_revision(checkout(tmp_path / "checkout", messages=())) is None


@needs_git
def test_revision_when_noted_by_a_build_is_that(tmp_path):
    folder = checkout(tmp_path / "checkout")
    (folder / "commit.txt").write_text(f"{'ab' * 20} 2026-01-02\n")
    assert str(read_revision(folder)) == "commit abababa, 2026-01-02"


@needs_git
def test_version_text_when_git_files_are_damaged_is_the_version(tmp_path, monkeypatch):
    folder = checkout(tmp_path / "checkout")
    commit = git(folder, "rev-parse", "HEAD")
    monkeypatch.setattr("edgepack.base.revision.find_data_root", lambda: folder)
    assert format_version() == f"{edgepack.__version__} (commit {commit[:7]})"
    (folder / ".git/HEAD").write_bytes(b"\xff damaged")
    assert format_version() == edgepack.__version__


def test_python_when_too_old_is_told_which_one_is_needed():
    script = "import sys; sys.version_info = (3, 9, 18); import edgepack"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 5
    first, hint = done.stderr.splitlines()
    assert first == f"error: edgepack needs Python 3.11 or newer, and this is 3.9: {sys.executable}"
    assert hint.startswith("  hint: ")
