"""What is refused of several projects before any is built."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from edgepack.builder import many
from edgepack.builder.cluster import Cluster
from edgepack.builder.many import build_projects
from edgepack.cli.main import run
from edgepack.errors import ProfileError, ToolError, UsageError

from tests.support.nets import tiny_models


@pytest.fixture
def paths(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        tiny_models.write_project(tmp_path / name, samples=False)
    return sorted(tmp_path.glob("*/edgepack.yaml"))


def test_projects_when_two_would_write_the_same_bundles_are_refused(paths, tmp_path):
    with pytest.raises(UsageError) as raised:
        build_projects(paths, targets=["raspberry-pi"], out=tmp_path / "dist")
    assert "are both net 1.2.3" in raised.value.problem
    assert all(str(path) in raised.value.problem for path in paths)
    assert not (tmp_path / "dist").exists()


def test_projects_when_each_is_wrong_have_each_its_error(paths, tmp_path):
    paths[0].write_text("schema_version: 1\n")
    pipeline = "schema_version: 1\nname: x\nversion: 1.0.0\nmodels: {a: a.onnx}\npipeline: []\n"
    paths[1].write_text(pipeline)
    built = build_projects([*paths, tmp_path / "none.yaml"], targets=["raspberry-pi"])
    assert [type(each.error) for each in built] == [ProfileError, UsageError, ProfileError]
    assert [each.path for each in built] == [*paths, tmp_path / "none.yaml"]
    assert "edgepack build --project" in built[1].error.hint


@pytest.mark.parametrize("option", ["--dry-run", "--aar", "--python=python3", "--project=x.yaml"])
def test_command_when_an_option_is_for_one_project_says_so(option, paths, capsys):
    assert run(["build", *map(str, paths), option]) == 2
    assert f"2 projects are given, and {option.partition('=')[0]} is for one" in (
        capsys.readouterr().err
    )


@pytest.fixture
def named(paths):
    """Projects with names of their own."""
    for path, name in zip(paths, "ab", strict=True):
        path.write_text(path.read_text().replace("name: net\n", f"name: {name}\n"))
    return paths


@pytest.fixture
def cluster(monkeypatch):
    """What --on finds: nothing is asked of it here."""
    found = Cluster("tcp://here", None, None, "", "", "", 1)
    monkeypatch.setattr(many, "open_cluster", lambda on, cache: nullcontext(found))
    return found


def test_projects_when_there_is_no_cluster_are_built_where_signals_arrive(named, monkeypatch):
    begun = []

    def interrupted(loaded, **_):
        begun.append((loaded.project.name, threading.current_thread()))
        raise KeyboardInterrupt

    monkeypatch.setattr(many, "build_loaded", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_projects(named, targets=["raspberry-pi"])
    assert begun == [("a", threading.main_thread())]


@pytest.mark.parametrize("on", [None, "tcp://here"])
def test_projects_when_one_may_not_read_a_file_build_the_others(on, named, cluster, monkeypatch):
    def build(loaded, **_):
        if loaded.project.name == "a":
            raise PermissionError(13, "Permission denied", "/data/weights")
        return SimpleNamespace(require_all=lambda: None)

    monkeypatch.setattr(many, "build_loaded", build)
    first, second = build_projects(named, targets=["raspberry-pi"], on=on)
    assert isinstance(first.error, ToolError)
    assert first.error.problem == "Permission denied: /data/weights"
    assert first.error.where == str(named[0])
    assert second.error is None


def test_projects_when_a_project_file_may_not_be_read_have_its_error(named, monkeypatch):
    def find(model, project):
        raise PermissionError(13, "Permission denied", str(project))

    monkeypatch.setattr(many, "find_project", find)
    built = build_projects(named, targets=["raspberry-pi"])
    assert [each.error.problem for each in built] == [f"Permission denied: {p}" for p in named]


def test_projects_when_a_bug_ends_one_on_a_cluster_stop_the_others(named, cluster, monkeypatch):
    stopped, begun = [], threading.Event()

    def build(loaded, **_):
        if loaded.project.name == "a":
            begun.wait(120)
            raise KeyError("a bug")
        begun.set()
        stopped.append(cluster.stopping.wait(120))
        cluster.require_going()

    monkeypatch.setattr(many, "build_loaded", build)
    with pytest.raises(KeyError):
        build_projects(named, targets=["raspberry-pi"], on="tcp://here", jobs=3)
    assert stopped == [True]
    assert cluster.room.places == 3
