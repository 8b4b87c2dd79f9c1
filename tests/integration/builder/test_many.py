"""Several projects in one build."""

from __future__ import annotations

import json

from edgepack.cli.main import run

from tests.support.nets import tiny_models


def test_projects_when_one_is_wrong_build_the_others_and_share_steps(tmp_path, capsys):
    for name in ("a", "b", "wrong"):
        (tmp_path / name).mkdir()
        path = tiny_models.write_project(tmp_path / name)
        path.write_text(path.read_text().replace("name: net\n", f"name: {name}\n"))
    (tmp_path / "wrong/net.onnx").write_bytes(b"no model")
    paths = [str(tmp_path / name / "edgepack.yaml") for name in ("a", "b", "wrong")]
    out = tmp_path / "dist"
    code = run(["build", *paths, "--target", "raspberry-pi", "--out", str(out), "--json"])
    found = json.loads(capsys.readouterr().out)["projects"]
    assert list(found) == paths
    assert [found[path]["state"] for path in paths] == ["done", "done", "failed"]
    assert code == found[paths[2]]["exit_code"] == 4
    first, second = (found[path]["result"] for path in paths[:2])
    assert (first["from_cache"], second["from_cache"]) == (0, second["steps"])
    names = {f"{name}-1.2.3-raspberry-pi" for name in "ab"}
    assert {path.name for path in out.iterdir() if path.is_dir()} == names
