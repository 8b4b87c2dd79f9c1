"""``edgepack serve`` as a client sees it: Triton's own, and plain HTTP."""

from __future__ import annotations

import datetime
import io
import ipaddress
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from edgepack.base.resources import find_ondevice_dir
from edgepack.builder.build import build
from edgepack.ondevice.runtime import edgepack_loader as loader
from edgepack.ondevice.service.edgepack_metrics import read_temperatures
from onnx import TensorProto, helper
from PIL import Image
from tritonclient.utils import InferenceServerException

from tests.support.nets.tiny_models import save
from tests.support.servers.service import serving

FLOAT = TensorProto.FLOAT
SIDE = 8


def make_bundle(folder: Path, version: str, factor: float, name: str = "net") -> Path:
    """Build a bundle that gives ``factor`` times the means of a picture's colours."""
    folder.mkdir(parents=True)
    node = helper.make_node
    save(
        folder / "net.onnx",
        [
            node("GlobalAveragePool", ["picture"], ["pooled"], "pool"),
            node("Flatten", ["pooled"], ["flat"], "flatten"),
            node("Mul", ["flat", "factor"], ["colours"], "scale"),
        ],
        [("picture", FLOAT, ["batch", 3, SIDE, SIDE])],
        [("colours", FLOAT, ["batch", 3])],
        [("factor", np.float32(factor))],
    )
    (folder / "colours.txt").write_text("red\ngreen\nblue\n")
    rng = np.random.default_rng(2)
    np.savez(
        folder / "samples.npz", picture=rng.uniform(0, 1, (4, 3, SIDE, SIDE)).astype(np.float32)
    )
    project = folder / "edgepack.yaml"
    project.write_text(f"""\
schema_version: 1
name: {name}
version: {version}
model: net.onnx
samples: {{calibration: {{path: samples.npz}}}}
files: [colours.txt]
inputs:
  picture: {{image: {{resize: {{width: {SIDE}, height: {SIDE}}}, scale: 0.00392156862745098}}}}
outputs: {{colours: {{kind: classification, labels: colours.txt}}}}
targets: [{{id: host, variants: [{{backend: cpu, recipe: fp32}}]}}]
""")
    return build(project=project, out=folder / "dist").bundles[0].bundle.path


@pytest.fixture(scope="module")
def bundles(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("serve")
    return make_bundle(folder / "one", "1.0.0", 1.0), make_bundle(folder / "two", "2.0.0", 2.0)


@pytest.fixture(scope="module")
def service(bundles):
    with serving(bundles[0]) as found:
        yield found


def array(seed: int = 5, batch: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, 1, (batch, 3, SIDE, SIDE)).astype(np.float32)


def ask_triton(address: str, given: np.ndarray, *, binary: bool, name: str = "net") -> np.ndarray:
    asked = triton.InferInput("picture", given.shape, "FP32")
    asked.set_data_from_numpy(given, binary_data=binary)
    wanted = [triton.InferRequestedOutput("colours", binary_data=binary)]
    with triton.InferenceServerClient(address) as client:
        return client.infer(name, [asked], outputs=wanted).as_numpy("colours")


def body_of(given: np.ndarray) -> bytes:
    entry = {"name": "picture", "datatype": "FP32", "shape": list(given.shape)}
    return json.dumps({"inputs": [{**entry, "data": given.reshape(-1).tolist()}]}).encode()


def test_tritons_client_finds_the_model_and_gets_what_the_loader_gives(service, bundles) -> None:
    with triton.InferenceServerClient(service.address) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("net")
        assert client.is_model_ready("net", "1.0.0")
        assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
        described = client.get_model_metadata("net")
    assert described["versions"] == ["1.0.0"]
    assert described["inputs"] == [
        {"name": "picture", "datatype": "FP32", "shape": [-1, 3, SIDE, SIDE]}
    ]
    digest = subprocess.run(
        ["sha256sum", bundles[0] / "manifest.json"], capture_output=True, text=True, check=True
    ).stdout.split()[0]
    assert described["parameters"]["digest"] == f"sha256:{digest}"
    assert described["parameters"]["variant"] == "cpu-fp32"
    wanted = loader.load(bundles[0])(array(batch=3))["colours"]
    for binary in (True, False):
        found = ask_triton(service.address, array(batch=3), binary=binary)
        np.testing.assert_array_equal(found, wanted)


def test_tritons_client_is_told_what_is_wrong(service) -> None:
    with pytest.raises(InferenceServerException, match=r"shape \[1, 3, 8, 4\], expected"):
        ask_triton(service.address, array()[..., :4], binary=True)
    with pytest.raises(InferenceServerException, match="there is no model 'other'; there is: net"):
        ask_triton(service.address, array(), binary=True, name="other")


@pytest.mark.parametrize("suffix", ["JPEG", "PNG"])
def test_a_picture_gets_answers(service, bundles, suffix) -> None:
    pixels = np.zeros((20, 30, 3), np.uint8)
    pixels[:] = (10, 200, 90)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, suffix)
    found = service.ask("/predict", file.getvalue(), {"Content-Type": f"image/{suffix.lower()}"})
    assert found.status == 200, found.body
    assert [each["label"] for each in found.document["answers"]["colours"]] == [
        "green",
        "blue",
        "red",
    ]
    decoded = np.asarray(Image.open(file).convert("RGB"))
    best = loader.load(bundles[0]).predict(decoded)["colours"][0]
    assert found.document["answers"]["colours"][0]["score"] == best.score
    one = service.ask("/predict/net?top=1", file.getvalue(), {"Content-Type": "image/png"})
    assert len(one.document["answers"]["colours"]) == 1


def test_a_picture_is_turned_upright(service) -> None:
    """The upper half is red; cut off on its side it would be another half."""
    pixels = np.zeros((40, 20, 3), np.uint8)
    pixels[:20, :, 0] = 255
    upright, turned = io.BytesIO(), io.BytesIO()
    Image.fromarray(pixels).save(upright, "PNG")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.rot90(pixels)).save(turned, "PNG", exif=exif)
    found = [
        service.ask("/predict", each.getvalue(), {"Content-Type": "image/png"}).document["answers"]
        for each in (upright, turned)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("path", "data", "headers", "status", "words"),
    [
        ("/v2/models/net/infer", b"{", {}, 400, "no JSON"),
        ("/v2/models/net/infer", body_of(array()[:, :2]), {}, 400, "has shape [1, 2, 8, 8]"),
        ("/v2/models/net/infer", b"x", {"Content-Encoding": "gzip"}, 415, "encoded as 'gzip'"),
        ("/v2/models/net/infer", None, {}, 405, "Not Allowed"),
        ("/v2/models/net/versions/9/infer", body_of(array()), {}, 404, "version 1.0.0, not 9"),
        ("/v2/models/net/versions/9/ready", None, {}, 404, "version 1.0.0, not 9"),
        ("/elsewhere", None, {}, 404, "Not Found"),
        ("/predict", b"\xff\xd8\xff", {"Content-Type": "image/jpeg"}, 400, "cannot be read"),
        ("/predict", b"GIF89a", {"Content-Type": "image/gif"}, 415, "taken are image/jpeg"),
        ("/predict?score=2", b"", {"Content-Type": "image/png"}, 400, "'score' is 2"),
        ("/predict?top=many", b"", {"Content-Type": "image/png"}, 400, "top: "),
        ("/v2/", None, {}, 404, "Not Found"),
        (
            "/v2/models/net/infer",
            body_of(array())[:-1] + b', "outputs": [{"name": "z"}]}',
            {},
            400,
            "there is no output 'z'; there are ['colours']",
        ),
        ("/predict", b"a fox", {"Content-Type": "text/plain"}, 415, "taken are image/jpeg"),
        ("/predict", b"RIFF", {"Content-Type": "audio/wav"}, 415, "'audio/wav', taken are image"),
    ],
)
def test_what_is_wrong_is_one_sentence(service, path, data, headers, status, words) -> None:
    found = service.ask(path, data, headers)
    assert (found.status, words in found.document["error"]) == (status, True), found.body
    assert "\n" not in found.document["error"]


def test_a_body_that_is_too_large_is_refused(bundles) -> None:
    with serving(bundles[0], "--most-mb", "1") as service:
        found = service.ask("/v2/models/net/infer", bytes((1 << 20) + 1))
        assert (found.status, found.document["error"]) == (
            413,
            "the body has more than 1048576 bytes",
        )
        assert service.ask("/v2/models/net/infer", body_of(array())).status == 200


def test_metrics_count_requests_errors_and_the_release(service) -> None:
    service.ask("/v2/models/net/infer", body_of(array()))
    service.ask("/v2/models/net/infer", b"{")
    service.ask("/v2/models/made-up/infer", b"{")
    text = service.ask("/metrics").body.decode()
    assert 'edgepack_requests_total{model="net",route="infer",status="200"}' in text
    assert 'edgepack_errors_total{model="net",reason="request"}' in text
    assert 'edgepack_requests_total{model="net",route="infer",status="400"}' in text
    assert 'edgepack_errors_total{model="",reason="unknown"}' in text
    assert "made-up" not in text
    assert 'edgepack_ready{model="net"} 1.0' in text
    assert 'version="1.0.0"' in text
    for phase in ("read", "wait", "infer", "write"):
        assert f'edgepack_phase_seconds_count{{model="net",phase="{phase}"}}' in text


def test_a_token_is_needed_for_all_but_health(bundles, tmp_path) -> None:
    token = tmp_path / "token"
    token.write_text("correct horse battery staple\n")
    with serving(bundles[0], "--token-file", token) as service:
        assert service.ask("/v2/health/live").status == 200
        for path, data in [
            ("/v2", None),
            ("/metrics", None),
            ("/openapi.json", None),
            ("/v2/models/net", None),
            ("/v2/models/net/infer", body_of(array())),
            ("/predict", b""),
        ]:
            refused = service.ask(path, data, {"Authorization": "Bearer correct horse"})
            assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert b"staple" not in refused.body
        right = {"Authorization": "Bearer correct horse battery staple"}
        assert service.ask("/v2/models/net/infer", body_of(array()), right).status == 200
        assert service.ask("/openapi.json", None, right).document["info"]["title"] == "edgepack"
        lower = {"Authorization": "bearer correct horse battery staple"}
        assert service.ask("/v2", None, lower).status == 200
        assert "staple" not in service.lines


def test_a_switch_of_the_release_loses_no_request(bundles, tmp_path) -> None:
    current = tmp_path / "current"
    current.symlink_to(bundles[0])
    seen: list[tuple[int, str, float]] = []
    over = threading.Event()
    given = array()
    mean = float(given[0, 0].mean())
    with serving(current) as service:

        def ask() -> None:
            while not over.is_set():
                found = service.ask("/v2/models/net/infer", body_of(given))
                document = found.document
                value = document["outputs"][0]["data"][0] if found.status == 200 else 0.0
                seen.append((found.status, document.get("model_version", ""), value))

        with ThreadPoolExecutor(4) as executor:
            asking = [executor.submit(ask) for _ in range(4)]
            service.wait_until(lambda: len(seen) > 20, "answers of the first release")
            switched = tmp_path / "next"
            switched.symlink_to(bundles[1])
            switched.rename(current)
            service.wait_until(
                lambda: any(version == "2.0.0" for _, version, _ in seen[-4:]), "the second release"
            )
            count = len(seen)
            service.wait_until(lambda: len(seen) > count + 20, "answers of the second release")
            over.set()
        for each in asking:
            each.result()
        assert {status for status, _, _ in seen} == {200}
        factors = {"1.0.0": 1.0, "2.0.0": 2.0}
        for _, version, value in seen:
            assert value == pytest.approx(factors[version] * mean, rel=1e-5)
        assert {version for _, version, _ in seen} == {"1.0.0", "2.0.0"}
        assert seen[-1][1] == "2.0.0"


def test_a_release_that_does_not_work_is_not_taken(bundles, tmp_path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(bundles[1], broken)
    manifest = json.loads((broken / "manifest.json").read_text())
    golden = broken / manifest["goldens"][0]["outputs"]["cpu-fp32"][0]["path"]
    golden.write_bytes(np.full(golden.stat().st_size // 4, 9, np.float32).tobytes())
    current = tmp_path / "current"
    current.symlink_to(bundles[0])
    with serving(current) as service:
        current.unlink()
        current.symlink_to(broken)
        service.process.send_signal(signal.SIGHUP)

        def refused() -> str:
            return service.ask("/v2/models/net").document["parameters"]["refused_release"]

        service.wait_until(refused, "the refusal")
        assert "dB" in refused()
        service.wait_until(lambda: "not served" in service.lines, "a line that says so")
        assert service.ask("/v2/health/ready").status == 200
        assert service.ask("/v2/models/net").document["versions"] == ["1.0.0"]
        current.unlink()
        current.symlink_to(bundles[1])
        service.wait_until(lambda: not refused(), "the whole release")
        assert service.ask("/v2/models/net").document["versions"] == ["2.0.0"]


def test_the_release_in_use_answers_when_its_folder_is_gone(bundles, tmp_path) -> None:
    place = tmp_path / "bundle"
    shutil.copytree(bundles[0], place)
    with serving(place) as service:
        shutil.rmtree(place)
        service.process.send_signal(signal.SIGHUP)
        service.wait_until(
            lambda: service.ask("/v2/models/net").document["parameters"]["refused_release"],
            "that the folder is gone",
        )
        file = io.BytesIO()
        Image.fromarray(np.full((9, 9, 3), 7, np.uint8)).save(file, "PNG")
        found = service.ask("/predict", file.getvalue(), {"Content-Type": "image/png"})
        assert found.status == 200, found.body
        assert found.document["answers"]["colours"][0]["label"] in {"red", "green", "blue"}


def test_requests_are_joined_to_batches_and_stay_apart(bundles) -> None:
    with (
        serving(bundles[0], "--batch", "4", "--batch-delay-ms", "200") as service,
        ThreadPoolExecutor(16) as executor,
    ):
        given = [array(seed) for seed in range(32)]
        found = list(
            executor.map(lambda each: ask_triton(service.address, each, binary=True), given)
        )
        for each, outputs in zip(given, found, strict=True):
            np.testing.assert_allclose(outputs[0], each[0].mean(axis=(1, 2)), rtol=1e-5)
        text = service.ask("/metrics").body.decode()
        runs = float(text.split('edgepack_batch_requests_count{model="net"} ')[1].split()[0])
        assert runs < 32


@pytest.fixture(scope="module")
def slow(tmp_path_factory) -> Path:
    """A bundle whose model takes a fraction of a second."""
    folder = tmp_path_factory.mktemp("slow")
    node, size = helper.make_node, 512
    names = ["x", *(f"h{number}" for number in range(59)), "y"]
    save(
        folder / "net.onnx",
        [node("MatMul", [names[n], "w"], [names[n + 1]], names[n + 1]) for n in range(60)],
        [("x", FLOAT, [size, size])],
        [("y", FLOAT, [size, size])],
        [("w", np.eye(size, dtype=np.float32))],
    )
    np.savez(folder / "s.npz", x=np.ones((2, size, size), np.float32))
    project = folder / "edgepack.yaml"
    project.write_text(
        "schema_version: 1\nname: slow\nmodel: net.onnx\nsamples: {calibration: {path: s.npz}}\n"
        "targets: [{id: host, variants: [{backend: cpu, recipe: fp32}]}]\n"
    )
    return build(project=project, out=folder / "dist").bundles[0].bundle.path


def slow_body(timeout: int = 0) -> tuple[bytes, dict[str, str]]:
    values = np.ones((512, 512), np.float32).tobytes()
    entry = {"name": "x", "datatype": "FP32", "shape": [512, 512]}
    entry["parameters"] = {"binary_data_size": len(values)}
    parameters = {"binary_data_output": True, "timeout": timeout}
    header = json.dumps({"inputs": [entry], "parameters": parameters}).encode()
    return header + values, {"Inference-Header-Content-Length": str(len(header))}


def test_who_comes_to_a_full_queue_is_told_at_once_and_others_are_served(slow) -> None:
    with serving(slow, "--waiting", "1") as service, ThreadPoolExecutor(8) as executor:
        body, headers = slow_body()
        asked = [
            executor.submit(service.ask, "/v2/models/slow/infer", body, headers) for _ in range(16)
        ]
        found = [each.result() for each in asked]
        assert {each.status for each in found} == {200, 429}
        refused = next(each for each in found if each.status == 429)
        assert refused.headers["Retry-After"] == "1"
        assert "requests wait already" in refused.document["error"]
        assert all(len(each.body) > 512 * 512 * 4 for each in found if each.status == 200)


def test_a_deadline_that_passed_is_told(slow) -> None:
    body, headers = slow_body(timeout=1)
    with serving(slow, "--deadline-ms", "60000") as service, ThreadPoolExecutor(4) as executor:
        longer = slow_body()
        before = [executor.submit(service.ask, "/v2/models/slow/infer", *longer) for _ in range(4)]

        def read_metrics() -> str:
            return service.ask("/metrics").body.decode()

        service.wait_until(
            lambda: 'edgepack_batch_requests_count{model="slow"} 1.0' in read_metrics(), "the first"
        )
        found = service.ask("/v2/models/slow/infer", body, headers)
        assert (found.status, found.headers["Retry-After"]) == (503, "1")
        assert "beyond its deadline" in found.document["error"]
        assert 'edgepack_errors_total{model="slow",reason="deadline"} 1.0' in read_metrics()
        assert [each.result().status for each in before] == [200] * 4


def test_who_is_gone_while_it_waits_is_not_run(slow) -> None:
    with serving(slow) as service, ThreadPoolExecutor(1) as executor:
        body, headers = slow_body()
        head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n"
        before = [
            executor.submit(service.ask, "/v2/models/slow/infer", body, headers) for _ in range(3)
        ]
        host, port = service.address.split(":")
        gone = [socket.create_connection((host, int(port))) for _ in range(5)]
        for each in gone:
            each.sendall(head.encode() + body)
        for each in gone:
            each.close()
        assert [each.result().status for each in before] == [200] * 3

        def read_metrics() -> str:
            return service.ask("/metrics").body.decode()

        service.wait_until(lambda: 'edgepack_waiting{model="slow"} 0.0' in read_metrics(), "rest")
        service.wait_until(lambda: 'reason="gone"' in read_metrics(), "that they are gone")
        assert "Traceback" not in service.lines


def test_pictures_that_a_model_decodes_itself_cannot_end_it(tmp_path) -> None:
    """The decoder of onnxruntime-extensions ends the process at the first, and hangs at others."""
    pytest.importorskip("onnxruntime_extensions")
    folder = tmp_path / "net"
    make_bundle(folder, "1.0.0", 1.0)
    project = folder / "edgepack.yaml"
    text = project.read_text().replace(
        "files:", "preprocess: {in_graph: true, extensions: [decode_image]}\nfiles:"
    )
    (folder / "photos").mkdir()
    random = np.random.default_rng(3)
    for number in range(3):
        pixels = random.integers(0, 256, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{number}.png")
    text = text.replace("{path: samples.npz}", "{images: photos}")
    project.write_text(text)
    bundle = build(project=project, out=folder / "other").bundles[0].bundle.path
    file = io.BytesIO()
    noise = random.integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(file, "JPEG", quality=95)
    half = file.getvalue()[: len(file.getvalue()) // 2]
    with serving(bundle) as service:
        assert b'"example":{"inputs"' not in service.ask("/openapi.json").body
        right = service.ask("/predict", file.getvalue(), {"Content-Type": "image/jpeg"})
        assert right.status == 200, right.body
        for data in (b"\xff\xd8\xffxxxxx", half, b"hello world"):
            found = service.ask("/predict", data, {"Content-Type": "image/jpeg"})
            assert (found.status, "cannot be read" in found.document["error"]) == (400, True)
            entry = {"name": "picture", "datatype": "UINT8", "shape": [len(data)]}
            asked = json.dumps({"inputs": [{**entry, "data": list(data)}]}).encode()
            found = service.ask("/v2/models/net/infer", asked)
            assert (found.status, "cannot be read" in found.document["error"]) == (400, True)
        again = service.ask("/predict", file.getvalue(), {"Content-Type": "image/jpeg"})
        assert again.document == right.document


def test_a_picture_with_more_than_8_bits_is_refused(service) -> None:
    file = io.BytesIO()
    Image.fromarray(np.full((9, 9), 300, np.uint16)).save(file, "PNG")
    found = service.ask("/predict", file.getvalue(), {"Content-Type": "image/png"})
    assert (found.status, "more than 8 bits" in found.document["error"]) == (400, True)


def test_a_folder_that_holds_anything_is_refused_and_tried_again_at_sighup(
    bundles, tmp_path
) -> None:
    current, odd = tmp_path / "current", tmp_path / "odd"
    current.symlink_to(bundles[0])
    odd.mkdir()
    (odd / "manifest.json").write_text('{"name": "net"}')
    with serving(current) as service:
        current.unlink()
        current.symlink_to(odd)

        def refused() -> str:
            return service.ask("/v2/models/net").document["parameters"]["refused_release"]

        service.wait_until(refused, "the refusal")
        assert "version" in refused()
        count = service.lines.count("not served")
        service.process.send_signal(signal.SIGHUP)
        service.wait_until(
            lambda: service.lines.count("not served") > count, "that it is tried again"
        )
        assert service.ask("/v2/models/net/infer", body_of(array())).status == 200


def test_temperatures_are_those_of_zones_that_are_on(tmp_path) -> None:
    for number, (kind, text) in enumerate(
        [("cpu", "51500\n"), ("cpu", "40000"), ("modem", "-274000"), ("off", "")]
    ):
        zone = tmp_path / "sys/class/thermal" / f"thermal_zone{number}"
        zone.mkdir(parents=True)
        (zone / "type").write_text(kind)
        (zone / "temp").write_text(text)
    assert read_temperatures(tmp_path) == {"cpu 1": 51.5, "cpu 2": 40.0}


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for 127.0.0.1 and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return folder / "certificate.pem", folder / "key.pem"


def test_with_a_certificate_it_speaks_tls(bundles, tmp_path) -> None:
    certificate, key = make_certificate(tmp_path)
    with serving(bundles[0], "--certificate", certificate, "--key", key) as service:
        context = ssl.create_default_context(cafile=str(certificate))
        service.wait_until(lambda: "proven in" in service.lines, "the release")
        with urllib.request.urlopen(f"{service.url}/v2/health/ready", context=context) as found:
            assert json.load(found) == {"ready": True}
        with pytest.raises(urllib.error.URLError, match="certificate verify failed"):
            urllib.request.urlopen(f"{service.url}/v2/health/ready")


def carry_service(bundle: Path, place: Path) -> tuple[str, ...]:
    """Copy a bundle with the service in it, and return the command that runs it."""
    shutil.copytree(bundle, place)
    (place / "service").mkdir()
    for path in (find_ondevice_dir() / "service").glob("edgepack_*.py"):
        shutil.copy(path, place / "service")
    return (sys.executable, "-I", str(place / "service" / "edgepack_serve.py"))


def test_a_release_of_several_models_is_refused_by_the_code_of_one(bundles, tmp_path) -> None:
    current, several = tmp_path / "current", tmp_path / "several"
    command = carry_service(bundles[0], tmp_path / "bundle")
    current.symlink_to(tmp_path / "bundle")
    several.mkdir()
    document = {"name": "net", "version": "2.0.0", "kind": "pipeline", "inputs": []}
    (several / "manifest.json").write_text(json.dumps(document))
    with serving(current, command=command) as service:
        current.unlink()
        current.symlink_to(several)
        service.process.send_signal(signal.SIGHUP)
        service.wait_until(lambda: "not served" in service.lines, "the refusal")
        assert "is of several models, and this service runs the code" in service.lines
        assert service.ask("/v2/models/net/infer", body_of(array())).status == 200


def test_it_runs_from_a_bundles_folder_without_edgepack(bundles, tmp_path) -> None:
    """As bundles are to carry it: the files beside the loader, and nothing of edgepack."""
    place = tmp_path / "bundle"
    with serving(command=carry_service(bundles[0], place)) as service:
        np.testing.assert_allclose(
            ask_triton(service.address, array(), binary=True)[0],
            array()[0].mean(axis=(1, 2)),
            rtol=1e-5,
        )
        assert service.stop() == 0
    assert not list(place.rglob("__pycache__"))


def test_a_signal_ends_it_after_what_is_asked(bundles) -> None:
    with (
        serving(bundles[0]) as service,
        socket.create_connection(service.address.split(":")) as slow,
    ):
        body = body_of(array())
        head = (
            f"POST /v2/models/net/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        slow.sendall(head.encode() + body[:10])
        service.wait_until(lambda: service.ask("/v2/health/live").status == 200, "an answer")
        service.process.send_signal(signal.SIGTERM)
        slow.sendall(body[10:])
        assert slow.recv(65536).startswith(b"HTTP/1.1 200")
        assert service.process.wait(60) == 0


def test_systemd_is_told_when_it_is_ready(bundles, tmp_path) -> None:
    place = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there:
        there.bind(str(place))
        there.settimeout(60)
        with serving(bundles[0], env={"NOTIFY_SOCKET": str(place)}) as service:
            assert there.recv(4096) == b"READY=1\nSTATUS=net 1.0.0"
            assert service.stop() == 0
            assert there.recv(4096) == b"STOPPING=1"


def test_several_bundles_answer_side_by_side(bundles, tmp_path) -> None:
    other = make_bundle(tmp_path / "other", "3.0.0", 3.0, name="other")
    with serving(bundles[0], other) as service:
        for name, factor in (("net", 1.0), ("other", 3.0)):
            found = ask_triton(service.address, array(), binary=True, name=name)
            np.testing.assert_allclose(found[0], factor * array()[0].mean(axis=(1, 2)), rtol=1e-5)
        refused = service.ask("/predict", b"", {"Content-Type": "image/png"})
        assert (refused.status, "/predict/other" in refused.document["error"]) == (404, True)


def run_serve(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "edgepack", "serve", *map(str, arguments)]
    env = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False, env=env)


def test_a_bundle_that_works_nowhere_ends_with_the_reason(bundles, tmp_path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(bundles[0], broken)
    for path in broken.rglob("*.onnx"):
        path.write_bytes(b"none")
    for path in broken.rglob("*.ort"):
        path.write_bytes(b"none")
    done = run_serve(broken, "--port", "0")
    assert done.returncode == 9, done.stderr
    assert "not served" in done.stderr
    assert "no variant of a bundle works on this machine" in done.stderr


def test_mistakes_at_the_start_are_one_error_each(bundles, tmp_path) -> None:
    (tmp_path / "short").write_text("abc")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, code, words in [
            ([tmp_path], 7, "is no complete bundle"),
            ([tmp_path / "short"], 7, "name the folder that a build wrote"),
            ([Path(f"{bundles[0]}.tar.gz")], 7, "unpack it first: tar -xf"),
            ([bundles[0], bundles[0]], 2, "are both of the project 'net'"),
            ([bundles[0], "--port", port], 5, "cannot be listened to"),
            ([bundles[0], "--token-file", tmp_path / "short"], 2, "16 characters at least"),
            ([bundles[0], "--token-file", tmp_path / "none"], 2, "gives no token"),
            ([bundles[0], "--key", tmp_path / "key"], 2, "go together"),
            ([bundles[0], "--deadline-ms", "0"], 2, "deadline-ms"),
        ]:
            done = run_serve(*arguments)
            assert (done.returncode, words in done.stderr) == (code, True), done.stderr
            assert done.stderr.count("error:") == 1
            assert "Traceback" not in done.stderr
