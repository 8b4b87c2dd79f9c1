"""What strangers may send to ``edgepack serve``: made up by Schemathesis and by Hypothesis."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.serving.test_serve import SIDE, array, body_of, make_bundle
from tests.support.servers.service import Service, serving

TOKEN = "correct-horse-battery-staple"
LENGTH = "Inference-Header-Content-Length"
MOST_MB = 2
SEED = "20"
# 503 is an answer, not a fault: of a request whose own deadline passed.
CONFIG = '[checks]\nnot_a_server_error.expected-statuses = ["2xx", "4xx", 503]\n'
GROWTH_KB = 256 << 10


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    bundle = make_bundle(folder / "net", "1.0.0", 1.0)
    (folder / "token").write_text(TOKEN)
    with serving(bundle, "--token-file", folder / "token", "--most-mb", str(MOST_MB)) as found:
        yield found


def run_schemathesis(folder: Path, where: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    config = folder / "schemathesis.toml"
    config.write_text(CONFIG)
    tool = Path(sys.executable).with_name("schemathesis")
    argv = [str(tool), "--config-file", str(config), "run", where, "--no-color", "--seed", SEED]
    # Values of the right types are rarely what this model takes.
    argv += ["--checks", "all", "--exclude-checks", "positive_data_acceptance"]
    argv += ["-H", f"Authorization: Bearer {TOKEN}", "--generation-database", "none"]
    argv += ["--warnings", "off", *arguments]
    env = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=500, check=False, env=env, cwd=folder
    )


@pytest.mark.slow(reason="hundreds of requests")
def test_answers_are_as_openapi_says(service, tmp_path) -> None:
    done = run_schemathesis(
        tmp_path, f"{service.url}/openapi.json", "--phases", "examples,coverage,fuzzing", "-n", "5"
    )
    assert done.returncode == 0, done.stdout
    assert "12 selected / 12 total" in done.stdout
    assert "Traceback" not in service.lines


@pytest.mark.slow(reason="starts Schemathesis")
@pytest.mark.parametrize("fault", ["schema", "status", "type"])
def test_a_document_that_is_wrong_is_noticed(service, tmp_path, fault) -> None:
    """What the test above rests on."""
    path = "/v2/health/live"
    document = service.ask("/openapi.json", None, {"Authorization": f"Bearer {TOKEN}"}).document
    operation = document["paths"][path]["get"]
    if fault == "schema":
        document["components"]["schemas"]["Live"]["properties"]["live"] = {"const": False}
    elif fault == "status":
        operation["responses"]["204"] = operation["responses"].pop("200")
    else:
        content = operation["responses"]["200"]["content"]
        content["text/plain"] = content.pop("application/json")
    place = tmp_path / "openapi.json"
    place.write_text(json.dumps(document))
    done = run_schemathesis(
        tmp_path, str(place), "--url", service.url, "--include-path", path, "-n", "1"
    )
    assert done.returncode == 1, done.stdout


def ask_raw(service: Service, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    host, port = service.address.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    try:
        sent = {"Authorization": f"Bearer {TOKEN}", **headers}
        connection.request("POST", "/v2/models/net/infer", body, sent)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


_NUMBERS = st.one_of(
    st.integers(-2, 9),
    st.sampled_from([0, 3, SIDE, 2**31, 2**32, 2**62, 2**63, 2**64, 2**200, -(2**63)]),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=3),
)
_SHAPES = st.one_of(
    st.just([1, 3, SIDE, SIDE]),
    st.lists(_NUMBERS, max_size=5),
    st.just([1] * 70),
    st.permutations([0, 2**62, 2**62, 2]),
    _NUMBERS,
)
_DATATYPES = st.one_of(
    st.sampled_from(["FP32", "BYTES", "UINT8", "BOOL", "FP16", "INT64", "BF16", "fp32", ""]),
    _NUMBERS,
)
_JSON = st.recursive(_NUMBERS, lambda inner: st.lists(inner, max_size=4), max_leaves=8)


_OBJECTS = st.dictionaries(
    st.sampled_from(["binary_data_output", "timeout", "binary_data_size", "a"]), _JSON, max_size=2
)
_WRONG: dict[str, st.SearchStrategy[Any]] = {
    "values": st.binary(max_size=64),
    "name": st.one_of(st.sampled_from(["other", ""]), _JSON),
    "datatype": _DATATYPES,
    "shape": _SHAPES,
    "size": _NUMBERS,
    "parameters": st.one_of(_OBJECTS, _JSON),
    "data": _JSON,
    "inputs": st.one_of(st.sampled_from([0, 2]), _JSON),
    "request": st.one_of(_OBJECTS, _JSON),
    "outputs": st.one_of(st.just([{"name": "colours", "parameters": {}}]), _JSON),
    "length": st.one_of(st.integers(-1, 999).map(str), st.text("0129-+ x_", max_size=30)),
}
"""What each part of a request may be instead."""


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, dict[str, str]]:
    """Bodies with the binary extension, of which at most three parts are not as they should be."""
    names = draw(st.sets(st.sampled_from(sorted(_WRONG)), max_size=3))
    wrong = {name: draw(_WRONG[name]) for name in sorted(names)}
    values = wrong.get("values", array().tobytes())
    entry = {
        "name": wrong.get("name", "picture"),
        "datatype": wrong.get("datatype", "FP32"),
        "shape": wrong.get("shape", [1, 3, SIDE, SIDE]),
        "parameters": {"binary_data_size": wrong.get("size", len(values))},
    }
    inputs = wrong.get("inputs", 1)
    document = {"inputs": [entry] * inputs if type(inputs) is int and inputs < 9 else inputs}
    for name, place, key in (
        ("parameters", entry, "parameters"),
        ("data", entry, "data"),
        ("request", document, "parameters"),
        ("outputs", document, "outputs"),
    ):
        if name in wrong:
            place[key] = wrong[name]
    text = json.dumps(document).encode()
    return text + values, {LENGTH: wrong.get("length", str(len(text)))}


def read_memory_kb(service: Service) -> int:
    for line in Path(f"/proc/{service.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


@pytest.mark.slow(reason="hundreds of requests")
def test_what_is_made_up_in_binary_is_answered_without_a_fault(service) -> None:
    before_kb, seen = read_memory_kb(service), set()

    @settings(
        max_examples=250,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(requests())
    def ask(request: tuple[bytes, dict[str, str]]) -> None:
        status, body = ask_raw(service, *request)
        seen.add(status)
        assert status in {200, 400, 503}, body
        assert status == 200 or len(json.loads(body)["error"]) > 5

    ask()
    assert {200, 400} <= seen
    status, body = ask_raw(service, body_of(array()), {})
    assert status == 200
    np.testing.assert_allclose(
        json.loads(body)["outputs"][0]["data"], array()[0].mean(axis=(1, 2)), rtol=1e-5
    )
    assert read_memory_kb(service) - before_kb < GROWTH_KB
    assert "Traceback" not in service.lines


def test_a_body_that_is_larger_than_it_says_or_may_be_is_refused(service) -> None:
    """Sizes that overflow, and more than is taken: nothing of it is held."""
    before_kb = read_memory_kb(service)
    for shape in ([2**62, 4], [2**64], [0, 2**63], [0, 2**62, 2**62], [2**200, 0], [1] * 70, [-1]):
        entry = {"name": "picture", "datatype": "FP32", "shape": shape}
        for size in (0, 2**64, -4):
            entry["parameters"] = {"binary_data_size": size}
            text = json.dumps({"inputs": [entry]}).encode()
            status, body = ask_raw(service, text, {LENGTH: str(len(text))})
            assert (status, b"error" in body) == (400, True), (shape, body)
    status, _ = ask_raw(service, bytes((MOST_MB << 20) + 1), {})
    assert status == 413
    assert ask_raw(service, body_of(array()), {})[0] == 200
    assert read_memory_kb(service) - before_kb < GROWTH_KB


CANARY = "canary-7f3a91c2d84e5b60"


def test_no_secret_of_a_request_is_written_anywhere(tmp_path) -> None:
    """The right token, wrong ones, and secrets in headers, paths, queries and bodies."""
    bundle = make_bundle(tmp_path / "net", "1.0.0", 1.0)
    (tmp_path / "token").write_text(f"{CANARY}-right")
    right = {"Authorization": f"Bearer {CANARY}-right"}
    found: list[tuple[int, bytes]] = []
    with serving(bundle, "--token-file", tmp_path / "token") as service:
        for headers in (
            right,
            {"Authorization": f"Bearer {CANARY}-wrong"},
            {"Authorization": f"Basic {CANARY}"},
            {"Authorization": CANARY},
            {"Authorization": f"Bearer {CANARY} \u00e9"},
            {**right, "Cookie": CANARY, "X-Api-Key": CANARY, "Referer": f"http://x/{CANARY}"},
            {**right, "Content-Type": "image/png", "Inference-Header-Content-Length": "9"},
        ):
            for path, data in (
                ("/v2/health/live", None),
                (f"/v2/health/ready?token={CANARY}", None),
                ("/v2/models/net", None),
                ("/v2/models/net/infer", body_of(array())),
                ("/v2/models/net/infer", f'{{"inputs": "{CANARY}"}}'.encode()),
                (f"/predict?token={CANARY}&score=0.5", b"\x89PNG"),
                ("/metrics", None),
                ("/openapi.json", None),
            ):
                sent = {name: value.encode() for name, value in headers.items()}
                answer = service.ask(path, data, sent)
                found.append((answer.status, answer.body + str(answer.headers).encode()))
        metrics = service.ask("/metrics", None, right).body
        service.process.terminate()
        service.process.wait(60)
        assert CANARY not in service.lines
    assert {status for status, _ in found} >= {200, 400, 401}
    assert not [body for _, body in found if CANARY.encode() in body]
    assert CANARY.encode() not in metrics
