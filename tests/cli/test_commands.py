from __future__ import annotations

import json
import subprocess
import sys

import pytest
from edgepack.cli.main import run
from edgepack.cli.printing import NODES_SHOWN
from edgepack.errors import BugError, suggest_nearest
from edgepack.model.finding import Finding, group_findings
from edgepack.project.grades import GRADES

from tests.support.nets import tiny_models
from tests.support.reports.tiny_bundle import write_tiny_bundle


def test_build_when_json_is_asked_prints_one_document_and_progress_on_stderr(tmp_path, capsys):
    project = tiny_models.write_project(tmp_path)
    out = str(tmp_path / "dist")
    assert (
        run(["build", "--project", str(project), "--target", "host", "--out", out, "--json"]) == 0
    )
    streams = capsys.readouterr()
    document = json.loads(streams.out)
    assert document["steps"] == 18
    assert [v["id"] for v in document["bundles"][0]["bundle"]["manifest"]["variants"]] == [
        "cpu-int8-static",
        "cpu-fp32",
    ]
    assert "build 18/18" in streams.err


def test_build_when_a_project_lies_here_needs_no_arguments(tmp_path, monkeypatch, capsys):
    tiny_models.write_project(tmp_path, "targets: [host]")
    monkeypatch.chdir(tmp_path)
    assert run(["build"]) == 0
    text = capsys.readouterr().out
    assert "on this computer's CPU" in text
    assert run(["verify", str(next((tmp_path / "dist").glob("net-*[!z]")))]) == 0


@pytest.mark.parametrize("command", ["evaluate", "tune", "tune --dry-run", "rollback"])
def test_phone_when_asked_for_what_it_cannot_do_is_refused_before_anything_is_done(
    tmp_path, monkeypatch, capsys, command
):
    monkeypatch.chdir(tmp_path)
    phone = {"transport": "adb", "serial": "8A1X0", "target": "android"}
    inventory = {"schema_version": 1, "devices": {"pixel": phone}}
    (tmp_path / "devices.yaml").write_text(json.dumps(inventory))
    bundle = write_tiny_bundle(tmp_path / "bundle")
    name = "tiny" if command == "rollback" else str(bundle)
    assert run([*command.split(), name, "--device", "pixel"]) == 2
    assert "edgepack bench BUNDLE --device pixel" in capsys.readouterr().err


@pytest.mark.slow(reason="takes seconds")
def test_limit_when_missed_exits_with_10_and_names_the_variant(tmp_path, capsys):
    project = tiny_models.write_project(tmp_path, "limits: {min_sqnr_db: 150}")
    arguments = ["build", "--project", str(project), "--target", "host"]
    assert run([*arguments, "--out", str(tmp_path / "dist")]) == 10
    assert "cpu-int8-static: output 'scores' is" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["build", "none.onnx", "--target", "host"], 4, "there is no model"),
        (["build", "net.onnx", "--target", "hots"], 2, "did you mean 'host'?"),
        (["build", "net.onnx"], 2, "no target is given"),
        (["build"], 2, "there is no edgepack.yaml here"),
        (["build", "net.onnx", "--target", "host", "--variant", "cpu-fp23"], 2, "'cpu-fp32'"),
        (["build", "empty.onnx", "--target", "host"], 4, "is empty"),
        (["build", "text.onnx", "--target", "host"], 4, "is not a whole ONNX model"),
        (["build", "--project", "typo.yaml"], 3, "typo.yaml:2:1: unknown key 'nmae'"),
        (["build", "--project", "none.yaml"], 3, "there is no file 'none.yaml'"),
        (["inspect", "text.onnx"], 4, "is not a whole ONNX model"),
        (["build", "net.onnx", "--target", "host", "--out", "text.onnx"], 2, "--out: cannot write"),
        (["verify", "none"], 7, "is not a complete bundle: it is not there"),
        (["verify", "text.onnx"], 7, "cannot unpack"),
        (["targets", "show", "rasberry-pi"], 2, "did you mean 'raspberry-pi'?"),
        (["push", "none", "--device", "nosuch"], 2, "there is no device 'nosuch'"),
        (["nosuchcommand"], 2, "No such command"),
        (["build", "--jobs", "0"], 2, "--jobs"),
        (["build", "net.onnx", "--target", "host", "--aar"], 2, "an AAR is for Android"),
        (["build", "net.onnx", "--target", "android", "--jars", "."], 2, "nothing is compiled"),
    ],
)
def test_bad_input_when_given_says_what_to_do_and_exits_with_its_code(
    tmp_path, monkeypatch, capsys, arguments, code, said
):
    monkeypatch.chdir(tmp_path)
    tiny_models.relu(tmp_path / "net.onnx")
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "text.onnx").write_text("not a model")
    (tmp_path / "typo.yaml").write_text("schema_version: 1\nnmae: x\nname: x\nmodel: net.onnx\n")
    assert run(arguments) == code
    streams = capsys.readouterr()
    assert said in streams.err
    assert "Traceback" not in streams.err
    assert streams.out == ""
    assert not (tmp_path / "dist").exists()


def test_yaml_when_it_has_several_problems_reports_all(tmp_path, capsys):
    path = tmp_path / "edgepack.yaml"
    path.write_text("schema_version: 1\nname: x\nmodl: a.onnx\nlimits: {metric_dorp: 1}\n")
    assert run(["build", "--project", str(path), "--target", "host"]) == 3
    said = capsys.readouterr().err
    assert f"{path}:3:1: unknown key 'modl'" in said
    assert f"{path}:4:10: unknown key 'metric_dorp'" in said
    assert "the key 'model' is missing" in said


def test_dry_run_when_asked_prints_the_plan(tmp_path, capsys):
    project = tiny_models.write_project(tmp_path, "targets: [host, raspberry-pi]")
    assert run(["build", "--project", str(project), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("step    calibration-") for line in lines) == 1
    assert sum(line.startswith("step    int8-static-") for line in lines) == 2
    assert sum(line.startswith("bundle  raspberry-pi") for line in lines) == 2


def test_inspect_when_json_is_asked_has_facts_and_findings(tmp_path, capsys):
    model = tiny_models.conv_net(tmp_path / "net.onnx")
    assert run(["inspect", str(model), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["facts"]["opset"] == 17
    assert document["findings"] == []


def test_init_when_run_writes_a_project_that_builds(tmp_path, capsys):
    model = tiny_models.conv_net(tmp_path / "net.onnx")
    assert run(["init", str(model)]) == 0
    path = tmp_path / "edgepack.yaml"
    assert "wrote" in capsys.readouterr().out
    assert run(["build", "--project", str(path), "--out", str(tmp_path / "dist")]) == 0
    assert run(["init", str(model)]) == 2


def test_init_when_images_are_named_describes_the_input_and_splits_them(tmp_path, capsys):
    from PIL import Image

    model = tiny_models.conv_net(tmp_path / "net.onnx")
    photos = tmp_path / "photos"
    photos.mkdir()
    for n in range(30):
        Image.new("RGB", (20, 14), (n * 8, 200 - n, n)).save(photos / f"{n}.png")
    assert run(["init", str(model), "--images", str(photos)]) == 0
    project = tmp_path / "edgepack.yaml"
    assert "calibration: {images: photos, limit: 100}" in project.read_text()
    project.write_text(project.read_text().replace("short_side: 9", "short_side: 8"))
    assert run(["build", "--project", str(project), "--out", str(tmp_path / "dist")]) == 0
    assert "agreement" in capsys.readouterr().out


def test_targets_when_listed_are_all_there(capsys):
    assert run(["targets", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"linux-x86-64", "linux-aarch64", "macos-arm64", "raspberry-pi"} <= {
        row["id"] for row in rows
    }
    assert all({*row["grades"].values()} <= {*GRADES} for row in rows)
    assert run(["targets", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Profile"


def test_targets_when_listed_show_the_same_grades_as_text_and_json(capsys):
    assert run(["targets", "list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert run(["targets", "list", "--json"]) == 0
    for row in json.loads(capsys.readouterr().out):
        grades = ", ".join(f"{name} {grade}" for name, grade in row["grades"].items())
        assert f"[{grades}]" in lines[row["id"]]


def test_inspect_when_nodes_are_left_for_one_reason_names_them_together(tmp_path, capsys):
    project = tiny_models.write_project(tmp_path)
    asked = ["inspect", "--project", str(project), "--target", "android-nnapi"]
    assert run([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["variants"][0]
    assert run(asked) == 0
    said = capsys.readouterr().out
    shown = said[said.index("nnapi-int8-static") : said.index("android-nnapi cpu-int8-static")]
    most = max(len(group) for group in group_findings(Finding(**f) for f in found["findings"]))
    assert most > NODES_SHOWN
    assert f"{most} nodes, '" in shown
    assert f"and {most - NODES_SHOWN} more: for example, " in shown
    assert shown.count("hint: ") < len(found["findings"])
    assert f"{found['needed']:.0%} are needed" in shown
    assert "edgepack inspect --json" in said


@pytest.mark.parametrize(
    "command",
    [
        [], ["init"], ["inspect"], ["build"], ["verify"], ["sign"], ["push"], ["bench"],
        ["evaluate"], ["report"], ["demo"], ["targets", "list"], ["targets", "show"],
        ["targets", "check"], ["device", "list"], ["device", "add"], ["device", "trust"],
        ["device", "import"], ["device", "wheels"],
        ["device", "check"], ["device", "provision"], ["device", "lease"], ["device", "release"],
        ["device", "who"], ["runs", "list"], ["runs", "show"],
        ["audit", "export"], ["audit", "verify"], ["device", "verify"],
    ],
)  # fmt: skip
def test_help_when_asked_has_an_example(capsys, command):
    assert run([*command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "edgepack" in text
    assert not command or "Example" in text


def test_help_when_asked_loads_no_heavy_library():
    script = (
        "import sys; from edgepack.cli.main import run; run(['--help']);"
        "heavy = {'onnx', 'onnxruntime', 'paramiko', 'numpy', 'sqlalchemy', 'yaml',"
        " 'jinja2', 'PIL', 'pydantic', 'rich'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_version_when_asked_is_the_packages_and_its_commit(capsys):
    import edgepack
    from edgepack.base.resources import find_data_root
    from edgepack.base.revision import read_revision

    assert run(["--version"]) == 0
    known = read_revision(find_data_root())
    commit = f" ({known})" if known else ""
    assert capsys.readouterr().out == f"edgepack {edgepack.__version__}{commit}\n"


def test_bug_when_it_happens_is_a_report_and_70(monkeypatch, capsys):
    monkeypatch.setattr("edgepack.backends.listing.find_target_files", lambda: 1 / 0)
    assert run(["targets", "list"]) == 70
    assert "BUG in edgepack" in capsys.readouterr().err


def test_bug_that_a_proof_finds_is_a_report_and_70(monkeypatch, capsys):
    def refuted() -> None:
        raise BugError("the file's layout would differ the next time")

    monkeypatch.setattr("edgepack.backends.listing.find_target_files", refuted)
    assert run(["targets", "list"]) == 70
    said = capsys.readouterr().err
    assert said.startswith("BUG in edgepack")
    assert "in refuted\n" in said
    assert "BugError: the file's layout would differ the next time" in said
    assert said.endswith("command: edgepack targets ...\n" + BugError("").hint + "\n")


def test_nearest_when_used_on_commands_is_plain_text():
    assert suggest_nearest("bulid", ["build"]) == "did you mean 'build'?"


def test_what_the_user_may_not_read_is_no_bug(tmp_path, monkeypatch, capsys):
    place = str(tmp_path / "closed" / "bundle")

    def forbidden(*_: object) -> None:
        raise PermissionError(13, "Permission denied", place)

    monkeypatch.setattr("edgepack.trying.verify.verify", forbidden)
    assert run(["verify", place]) == 5
    said = capsys.readouterr().err
    assert said.startswith(f"error: Permission denied: {place}\n  hint: check the permissions")
