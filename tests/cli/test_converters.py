from __future__ import annotations

import json

import pytest
from edgepack.cli.main import run
from edgepack.converters.registry import CONVERTERS


def test_converters_when_listed_say_what_they_take_and_need(capsys):
    assert run(["converter", "list", "--json"]) == 0
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert set(found) == set(CONVERTERS)
    assert found["tflite"]["environment"] == "tensorflow"
    assert "MB to download" in found["tflite"]["size"]
    assert found["tflite"]["ready"] is False


def test_converters_when_listed_for_people_are_a_table(capsys):
    assert run(["converter", "list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in CONVERTERS)


def test_converter_when_its_packages_are_beside_edgepack_runs_there(tmp_path, monkeypatch, capsys):
    def read() -> dict[str, bool]:
        assert run(["converter", "list", "--json"]) == 0
        return {each["name"]: each["beside"] for each in json.loads(capsys.readouterr().out)}

    own = CONVERTERS["torch"].own
    for package in own:
        if package != "onnx":
            assert not any(read().values())  # one of them is missing still
            (tmp_path / f"{package}-9.9.dist-info").mkdir()
            (tmp_path / f"{package}-9.9.dist-info/METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {package}\nVersion: 9.9\n"
            )
            monkeypatch.syspath_prepend(str(tmp_path))
    assert [name for name, beside in read().items() if beside] == ["torch"]
    assert run(["converter", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    [cells] = [line.split("│") for line in lines if "│ torch " in line]
    assert cells[3].strip() == "edgepack's own Python, which has its packages"
    assert cells[4].strip() == "yes"


def test_converter_when_unknown_is_a_usage_error(capsys):
    assert run(["converter", "install", "tflight"]) == 2
    assert "tflite" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["build", "inspect"])
def test_python_when_given_for_onnx_is_a_usage_error(tmp_path, capsys, command):
    from tests.support.nets import tiny_models

    project = tiny_models.write_project(tmp_path)
    asked = [command, "--project", str(project), "--python", "/usr/bin/python3"]
    assert run(asked) == 2
    assert "is not converted" in capsys.readouterr().err


def test_folder_when_no_saved_model_is_a_usage_error(tmp_path, capsys):
    assert run(["build", str(tmp_path), "--target", "host"]) == 2
    assert "saved_model.pb" in capsys.readouterr().err


def test_file_when_it_only_has_the_name_of_a_format_is_refused(tmp_path, capsys):
    path = tmp_path / "net.tflite"
    path.write_text("version https://git-lfs.github.com/spec/v1\n")
    code = run(["build", str(path), "--target", "host"])
    err = capsys.readouterr().err
    assert code == 4
    assert "no TensorFlow Lite model: it begins with b'version '" in err
    assert "Git LFS" in err
