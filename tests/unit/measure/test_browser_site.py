"""The page's server without a browser: a thread here is the page."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from edgepack.errors import (
    DeviceError,
    RemoteCommandError,
    TooSlowError,
    VariantRefusedError,
)
from edgepack.measure.browsers import site as site_module
from edgepack.measure.browsers.site import Site, serving

SOON_S = 10.0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "model.onnx").write_bytes(b"model")
    served = {"": b"<p>page", "page.js": b"js", "bundle/model.onnx": tmp_path / "model.onnx"}
    with serving("page", "127.0.0.1:0", served) as made:
        yield made


def never() -> str:
    return ""


def fetch(url: str, body: bytes | None = None) -> tuple[int, bytes, Any]:
    request = urllib.request.Request(url, data=body)
    try:
        with urllib.request.urlopen(request, timeout=SOON_S) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read(), error.headers


def pack(header: object, rest: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack(">I", len(text)) + text + rest


def play(site: Site, answer: Callable[[dict[str, Any], bytes], bytes]) -> threading.Thread:
    """Be a page whose worker answers one command."""
    _, page, _ = fetch(f"{site.url}hello", b"")

    def work() -> None:
        said, number = pack({}), 0
        for _ in range(2):
            url = f"{site.url}next?page={page.decode()}&worker=0&answers={number}"
            status, found, _ = fetch(url, said)
            if status != 200:
                return
            (size,) = struct.unpack(">I", found[:4])
            command = json.loads(found[4 : 4 + size])
            said, number = answer(command, found[4 + size :]), command["number"]

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def ask(site: Site, timeout_s: float = SOON_S) -> tuple[bytes, bytes]:
    site.open(SOON_S, never)
    return site.ask({"do": "run"}, b"samples", timeout_s=timeout_s, watch=never)


def test_command_when_the_worker_answers_returns_header_and_rest(site):
    seen = []

    def answer(command: dict[str, Any], body: bytes) -> bytes:
        seen.append((command["do"], body))
        return pack({"ran": 1}, b"outputs")

    play(site, answer)
    header, rest = ask(site)
    assert (json.loads(header), rest, seen) == ({"ran": 1}, b"outputs", [("run", b"samples")])


def test_file_when_served_has_what_isolates_the_page(site):
    status, data, headers = fetch(site.url)
    assert (status, data) == (200, b"<p>page")
    assert headers["Content-Type"].startswith("text/html")
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert headers["Cross-Origin-Embedder-Policy"] == "require-corp"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert fetch(f"{site.url}bundle/model.onnx")[:2] == (200, b"model")
    assert fetch(f"{site.url}page.js")[2]["Content-Type"] == "text/javascript"


@pytest.mark.parametrize("path", ["", "wrong/", "wrong/page.js", "wrong/hello"])
def test_address_when_the_token_is_wrong_is_unknown(site, path):
    root = site.url.removesuffix(f"{site.token}/")
    assert fetch(root + path)[0] == 404
    assert fetch(root + path, b"")[0] == 404


@pytest.mark.parametrize(
    "path", ["bundle/other.onnx", "bundle/../page.js", "../../etc/passwd", "x"]
)
def test_file_when_not_listed_is_unknown(site, path):
    assert fetch(site.url + path)[0] == 404


def test_page_when_another_is_open_is_told_so(site):
    assert fetch(f"{site.url}hello", b"")[0] == 200
    status, said, _ = fetch(f"{site.url}hello", b"")
    assert (status, b"Another page measures already" in said) == (409, True)
    assert fetch(f"{site.url}alive?page=other", b"")[0] == 409
    assert fetch(f"{site.url}next?page=other&answers=0", pack({}))[0] == 409


def test_page_when_never_opened_is_an_error_with_its_address(site):
    with pytest.raises(DeviceError, match=r"the page was not opened within 0\.3 s") as error:
        site.open(0.3, never)
    assert site.url in error.value.hint


def test_page_when_the_browser_ends_is_an_error(site):
    with pytest.raises(DeviceError, match="the browser ended with exit code 1"):
        site.open(SOON_S, lambda: "the browser ended with exit code 1")


@pytest.mark.parametrize(
    ("path", "said"),
    [("closed", "the page was closed"), ("failed", "the page failed: no memory")],
)
def test_page_when_it_tells_its_end_is_an_error(site, path, said):
    page = fetch(f"{site.url}hello", b"")[1].decode()
    fetch(f"{site.url}{path}?page={page}", b"no memory")
    with pytest.raises(DeviceError, match=said):
        site.open(SOON_S, never)


def test_page_when_another_tells_its_end_goes_on(site):
    fetch(f"{site.url}closed?page=other", b"")
    play(site, lambda _, __: pack({}))
    assert ask(site) == (b"{}", b"")


def test_page_when_silent_is_gone(site, monkeypatch):
    monkeypatch.setattr(site_module, "SILENT_S", 0.3)
    fetch(f"{site.url}hello", b"")
    with pytest.raises(DeviceError, match="has said nothing for 0 s"):
        site.open(SOON_S, never)


def test_page_when_hidden_is_remembered(site):
    page = fetch(f"{site.url}hello", b"")[1].decode()
    fetch(f"{site.url}alive?page={page}&hidden=1", b"")
    fetch(f"{site.url}alive?page={page}&hidden=0", b"")
    assert site.was_hidden
    site.forget_hidden()
    fetch(f"{site.url}alive?page={page}&hidden=0", b"")
    assert not site.was_hidden


def test_page_when_still_hidden_is_not_forgotten(site):
    page = fetch(f"{site.url}hello", b"")[1].decode()
    fetch(f"{site.url}alive?page={page}&hidden=1", b"")
    site.forget_hidden()
    assert site.was_hidden


def test_answer_when_too_large_is_an_error_that_says_so(site, monkeypatch):
    monkeypatch.setattr(site_module, "_MAX_BODY_BYTES", 100)
    play(site, lambda _, __: pack({}, bytes(200)))
    with pytest.raises(DeviceError, match="has 206 bytes, and at most 100 are taken") as error:
        ask(site)
    assert "smaller outputs" in error.value.hint


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
def test_address_when_any_of_this_machine_has_its_name(listen):
    with serving("page", listen, {}) as made:
        assert made.url.startswith(f"http://{socket.gethostname()}:")


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (pack({"refused": "no variant works"}), VariantRefusedError, "no variant works"),
        (pack({"failed": "TypeError: x"}), RemoteCommandError, "the page failed: TypeError: x"),
        (b"\0\0", RemoteCommandError, "is cut off"),
        (pack(b"no json"), RemoteCommandError, "is not JSON"),
        (pack([1]), RemoteCommandError, "is no object"),
        (struct.pack(">I", 99) + b"{}", RemoteCommandError, "is cut off"),
    ],
)
def test_command_when_the_answer_is_none_is_an_error(site, answer, kind, said):
    play(site, lambda _, __: answer)
    with pytest.raises(kind, match=said):
        ask(site)


def test_command_when_it_takes_too_long_is_an_error(site):
    page = fetch(f"{site.url}hello", b"")[1].decode()
    url = f"{site.url}next?page={page}&worker=0&answers=0"
    threading.Thread(target=fetch, args=(url, pack({})), daemon=True).start()
    with pytest.raises(TooSlowError, match=r"longer than 0\.3 s"):
        ask(site, timeout_s=0.3)


def test_worker_when_renewed_while_it_computes_is_asked_next(site):
    page = fetch(f"{site.url}hello", b"")[1].decode()
    asked = f"{site.url}next?page={page}&worker="
    threading.Thread(target=fetch, args=(f"{asked}0&answers=0", pack({})), daemon=True).start()
    with pytest.raises(TooSlowError):
        ask(site, timeout_s=0.3)

    def renew() -> None:
        while (wanted := fetch(f"{site.url}alive?page={page}&hidden=0", b"")[1]) == b"0":
            pass
        told.append(fetch(f"{asked}0&answers=1", pack({"late": 1}))[0])
        fetch(f"{asked}{int(wanted)}&answers={int(wanted)}", pack({}))

    told: list[int] = []
    threading.Thread(target=renew, daemon=True).start()
    site.renew(never, SOON_S)
    assert told == [409]


def test_worker_when_renewed_takes_no_command_of_the_next(site):
    page = fetch(f"{site.url}hello", b"")[1].decode()
    asked = f"{site.url}next?page={page}&worker="
    told: list[int] = []
    ends = threading.Thread(target=lambda: told.append(fetch(f"{asked}0&answers=", b"")[0]))
    ends.start()
    time.sleep(0.3)
    renewing = threading.Thread(target=site.renew, args=(never, SOON_S))
    renewing.start()
    while fetch(f"{site.url}alive?page={page}", b"")[1] == b"0":
        pass
    play_again = threading.Thread(
        target=lambda: told.append(fetch(f"{asked}1&answers=1", pack({}))[0])
    )
    play_again.start()
    renewing.join(SOON_S)
    with pytest.raises(TooSlowError):
        site.ask({"do": "run"}, b"", timeout_s=0.5, watch=never)
    play_again.join(SOON_S)
    ends.join()
    assert sorted(told) == [200, 204]


@pytest.mark.parametrize("listen", ["192.0.2.1:0", "127.0.0.1:99999"])
def test_address_when_not_of_this_machine_is_an_error(listen):
    with pytest.raises(DeviceError, match="cannot be served at"):
        Site("page", listen, {})


def test_address_when_its_port_is_taken_is_an_error(site):
    port = site.url.split(":")[2].split("/")[0]
    with pytest.raises(DeviceError, match="cannot be served at"):
        Site("page", f"127.0.0.1:{port}", {})
