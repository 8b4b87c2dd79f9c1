"""The README's Python, run; and what importing edgepack costs."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from pathlib import Path

from edgepack import api
from edgepack.bundle.reading import load_bundle
from tiny_bundle import write_tiny_bundle

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
SECTION = README[README.index("## From Python") : README.index("## How it compares")]


def test_readmes_script_of_a_farm_when_run_pushes_verifies_leases_and_audits(
    tmp_path, monkeypatch, capsys
):
    (example,) = re.findall(r"^```python\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)
    bundle = write_tiny_bundle(tmp_path / "dist" / "tiny-1.0.0-linux-x86-64")
    entry = {"transport": "local", "target": "linux-x86-64", "python": sys.executable}
    devices = {n: {**entry, "tags": ["lab"], "root": str(tmp_path / n)} for n in ("a", "b")}
    (tmp_path / "devices.yaml").write_text(json.dumps({"schema_version": 1, "devices": devices}))
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    digest = load_bundle(bundle).digest
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"{name} done {digest[:16]} " for name in ("a", "b")]
    assert lines.count(platform.release()) == 2
    assert [line.split()[:2] for line in lines[-2:]] == [["a", digest], ["b", digest]]
    assert {(tmp_path / name / "tiny" / "current").resolve().name for name in ("a", "b")} == {
        digest[:16]
    }


def test_api_when_listed_has_each_of_its_names():
    assert sorted(set(api.__all__)) == sorted(api.__all__)
    assert all(hasattr(api, name) for name in api.__all__)


def test_package_when_imported_imports_nothing_else_of_itself():
    script = "import sys, edgepack; print([n for n in sys.modules if n.startswith('edgepack.')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout == b"[]\n"
