"""Bundles with ``service: true``: what they carry, and that it answers without edgepack."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from edgepack import api
from edgepack.base.files import hash_file
from edgepack.bundle.reading import load_any, verify_any
from edgepack.cli.main import run
from edgepack.errors import UsageError

from tests.support.nets.pipeline_nets import make_audio, write_wake_project
from tests.support.nets.tiny_models import relu
from tests.support.servers.service import serving

LINUX, PHONE = "linux-x86-64", "android-xnnpack"
CPU = "{backend: cpu, recipe: fp32}"
ALONE = """
import runpy, sys
sys.modules["edgepack"] = None
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script where edgepack cannot be imported."""


def write_project(folder: Path, targets: Sequence[str], more: str = "") -> Path:
    relu(folder / "net.onnx")
    (folder / "edgepack.yaml").write_text(
        f"schema_version: 1\nname: net\nversion: 1.0.0\nmodel: net.onnx\n"
        f"targets: [{', '.join(f'{{id: {t}, variants: [{CPU}]}}' for t in targets)}]\n{more}"
    )
    return folder


def build(folder: Path, *, out: str = "dist", **options) -> Path:
    found = api.build(project=folder / "edgepack.yaml", out=folder / out, **options)
    return found.bundles[0].bundle.path


def list_served(bundle: Path) -> set[str]:
    manifest = load_any(bundle).manifest
    return {file.path for file in manifest.files if file.role == "service"}


def hash_all(folder: Path) -> dict[str, str]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hash_file(path) for path in paths}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_project(tmp_path_factory.mktemp("service"), [LINUX])


@pytest.fixture(scope="module")
def bundle(folder: Path) -> Path:
    return build(folder, service=True)


def test_bundle_when_built_again_has_the_same_bytes(folder, bundle):
    again = build(folder, out="again", service=True, use_cache=False)
    assert hash_all(again) == hash_all(bundle)
    archives = [hash_file(Path(f"{path}.tar.gz")) for path in (again, bundle)]
    assert archives[0] == archives[1]


def test_bundle_when_no_service_is_asked_for_differs_by_nothing_else(folder, bundle):
    plain = build(folder, out="plain")
    assert list_served(plain) == set()
    served, others = hash_all(bundle), hash_all(plain)
    assert set(served) - set(others) == list_served(bundle)
    changed = {path for path, digest in others.items() if served[path] != digest}
    assert changed == {"README.md", "manifest.json", "manifest.json.sha256", "sbom.cdx.json"}


def test_sbom_when_the_service_is_in_the_bundle_has_its_packages(bundle):
    sbom = json.loads((bundle / "sbom.cdx.json").read_text())
    assert {"fastapi", "uvicorn"} < {entry["name"] for entry in sbom["components"]}


def test_bundle_when_one_of_its_service_files_is_altered_is_refused(bundle, tmp_path):
    shutil.copytree(bundle, tmp_path / "bundle")
    verify_any(tmp_path / "bundle")
    (tmp_path / "bundle" / "compose.yaml").write_text("services: {}\n")
    assert run(["verify", str(tmp_path / "bundle")]) == 7


def test_bundle_answers_without_edgepack(bundle):
    command = (sys.executable, "-c", ALONE, str(bundle / "service/edgepack_serve.py"))
    with serving(command=command) as it:
        assert it.ask("/v2/models/net").document["versions"] == ["1.0.0"]
        ready = [sys.executable, "-I", str(bundle / "service/edgepack_ready.py")]
        assert subprocess.run([*ready, it.url], check=False).returncode == 0
        assert it.stop() == 0
        gone = subprocess.run([*ready, it.url], check=False, capture_output=True, text=True)
        assert (gone.returncode, "refused" in gone.stderr) == (1, True)
    assert not list(bundle.rglob("__pycache__"))


def test_edgepack_serves_such_a_bundle_too(bundle):
    with serving(bundle) as service:
        assert service.ask("/v2/models/net/ready").status == 200


@contextmanager
def answering(status: int) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/v2/health/ready" else 404)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1), (404, 1), (301, 1)])
def test_health_check_when_the_service_is_not_ready_says_so(bundle, status, code):
    with answering(status) as url:
        done = subprocess.run(
            [sys.executable, "-I", str(bundle / "service/edgepack_ready.py"), url],
            check=False,
            capture_output=True,
            text=True,
            env={"http_proxy": "http://127.0.0.1:9"},
        )
    assert (done.returncode, done.stdout) == (code, "")
    assert (f"HTTP {status}" in done.stderr) == bool(code)


@pytest.mark.parametrize("word", ["", "nonsense", "http://", "https://127.0.0.1:1", "http://[x"])
def test_health_check_when_the_address_is_wrong_is_one_line(bundle, word):
    done = subprocess.run(
        [sys.executable, "-I", str(bundle / "service/edgepack_ready.py"), word],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)


def test_service_when_a_target_has_no_python_is_one_error_that_names_it(folder, capsys):
    targets = [LINUX, PHONE, "web"]
    for act in (api.build, api.dry_run):
        with pytest.raises(UsageError, match=f"{PHONE}, web") as caught:
            act(project=folder / "edgepack.yaml", targets=targets, service=True)
        assert LINUX not in caught.value.problem
    options = [word for target in targets for word in ("--target", target)]
    project = ["--project", str(folder / "edgepack.yaml")]
    assert run(["build", *project, *options, "--service", "--out", str(folder / "none")]) == 2
    assert "--service" in capsys.readouterr().err
    assert not (folder / "none").exists()


def test_service_in_the_project_is_for_linux_alone(tmp_path):
    folder = write_project(tmp_path, [LINUX, PHONE], "service: true\n")
    found = api.build(project=folder / "edgepack.yaml", out=tmp_path / "dist")
    served = {each.bundle.manifest.target: list_served(each.bundle.path) for each in found.bundles}
    assert served[PHONE] == set()
    assert "service/edgepack_serve.py" in served[LINUX]


def check_sbom(bundle: Path) -> None:
    """Require that it leads to those of the parts, and has the packages of all and the service."""
    sbom = json.loads((bundle / "sbom.cdx.json").read_text())
    parts = [entry for entry in sbom["components"] if "externalReferences" in entry]
    assert len(parts) == len(list(bundle.glob("parts/*")))
    for [there] in (entry["externalReferences"] for entry in parts):
        assert there["hashes"][0]["content"] == hash_file(bundle / there["url"])
    names = {entry["name"] for entry in sbom["components"]}
    assert {"numpy", "onnxruntime", "fastapi", "uvicorn"} < names
    refs = [entry["bom-ref"] for entry in sbom["components"]]
    assert sbom["dependencies"] == [{"ref": bundle.name, "dependsOn": refs}]


@pytest.mark.slow(reason="builds three parts, and starts a service")
def test_service_of_several_models_is_the_wholes(tmp_path):
    project = write_wake_project(tmp_path)
    part = next(path for path in tmp_path.glob("*.yaml") if path != project)
    part.write_text(part.read_text() + "service: true\n")
    assert run(["build", "--project", str(project), "--service", "--out", str(tmp_path / "d")]) == 0
    [bundle] = [path for path in (tmp_path / "d").iterdir() if path.is_dir()]
    assert "service/edgepack-wake.service" in list_served(verify_any(bundle).path)
    assert not list(bundle.glob("parts/*/service"))
    check_sbom(bundle)
    command = (sys.executable, "-c", ALONE, str(bundle / "service/edgepack_serve.py"))
    with serving(command=command) as it:
        audio = make_audio(1)
        asked = {
            "name": "audio", "datatype": "FP32", "shape": list(audio.shape),
            "data": audio.reshape(-1).tolist(),
        }  # fmt: skip
        answer = it.ask("/v2/models/wake/infer", json.dumps({"inputs": [asked]}).encode())
        assert answer.status == 200, answer.body
        assert np.isfinite(answer.document["outputs"][0]["data"]).all()
