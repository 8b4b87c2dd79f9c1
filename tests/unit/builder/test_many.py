"""What is refused of several projects before any is built."""

from __future__ import annotations

import pytest
from edgepack.builder.many import build_projects
from edgepack.cli.main import run
from edgepack.errors import ProfileError, UsageError

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
