"""Who a registry is told that we are, over TLS, with token servers and by proxies."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from edgepack import api
from edgepack.errors import RegistryAwayError, RegistryError
from edgepack.registry import connection
from edgepack.registry.reference import Reference
from edgepack.registry.repository import RegistryRepository

from tests.support.servers.boards import tree
from tests.support.servers.played_registry import Reply, played_registry
from tests.support.servers.registry import PASSWORD, USER, Registry, running_registry
from tests.support.servers.token_server import (
    IDENTITY_TOKEN,
    TokenServer,
    make_certificate,
    running_token_server,
)


@pytest.fixture
def tokens(tmp_path: Path) -> Iterator[TokenServer]:
    with running_token_server(tmp_path / "tokens") as running:
        yield running


@pytest.fixture
def guarded(tokens: TokenServer, tmp_path: Path) -> Iterator[Registry]:
    with running_registry(tmp_path / "registry", auth=tokens.auth) as running:
        yield running


@pytest.fixture
def auth_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))
    return tmp_path / "auth.json"


def log_in(path: Path, host: str, **entry: str) -> None:
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    path.write_text(json.dumps({"auths": {host: entry or {"auth": auth}}}))


def publish(bundle: Path, address: str, **options: Any) -> api.Published:
    given = api.PublishOptions(**options)
    [published] = api.publish([bundle], api.Reference.parse(address), options=given)
    return published


def test_token_when_the_registry_names_a_server_is_got_there(
    whole: Path, guarded: Registry, tokens: TokenServer, auth_file: Path, tmp_path: Path
):
    with pytest.raises(RegistryError, match="nothing is kept"):
        publish(whole, guarded.address("lab/tiny"))
    log_in(auth_file, guarded.host)
    tokens.asked.clear()
    publish(whole, guarded.address("lab/tiny"))
    # One to look, one to write; both are used again for all that follows.
    assert len(tokens.asked) == 2
    assert {word.partition(" ")[0] for word in tokens.asked} == {USER}
    auth_file.unlink()
    [got] = api.fetch(api.Reference.parse(guarded.address("lab/tiny:1.0.0")), out=tmp_path / "out")
    assert tree(got.path) == tree(whole)  # anybody may pull there


def test_token_when_it_expires_is_got_again(
    whole: Path, guarded: Registry, tokens: TokenServer, auth_file: Path
):
    log_in(auth_file, guarded.host)
    tokens.lasts_s = 1
    repository = RegistryRepository(Reference.parse(guarded.address("lab/tiny")))
    publish(whole, guarded.address("lab/tiny"))
    assert repository.read_manifest("1.0.0") is not None
    before = len(tokens.asked)
    repository._connection._expires = 1e-9  # as if time had passed
    assert repository.read_manifest("1.0.0") is not None
    assert len(tokens.asked) == before + 1


def test_token_when_an_identity_is_kept_is_got_by_it(
    whole: Path, guarded: Registry, tokens: TokenServer, auth_file: Path
):
    log_in(auth_file, guarded.host, auth="", identitytoken=IDENTITY_TOKEN)
    publish(whole, guarded.address("lab/tiny"))
    assert tokens.asked[-1] == f"{USER} by identity repository:lab/tiny:pull,push"


def test_token_when_the_password_is_wrong_is_refused_without_it(
    whole: Path, guarded: Registry, auth_file: Path
):
    log_in(auth_file, guarded.host, auth=base64.b64encode(b"alice:wr0ng-secret").decode())
    with pytest.raises(
        RegistryError, match="does not take what is kept for it here, of alice"
    ) as e:
        publish(whole, guarded.address("lab/tiny"))
    assert "wr0ng-secret" not in f"{e.value}"


@pytest.mark.parametrize(
    "challenge",
    [
        'Bearer realm="file:///etc/passwd"',
        "Bearer realm=x",
        "Negotiate",
        "",
        "Bearer " + "x" * 9999,
    ],
)
def test_challenge_when_it_is_nonsense_is_one_error(challenge: str, auth_file: Path):
    with played_registry() as played:
        played.change = lambda *_: Reply(401, headers={"WWW-Authenticate": challenge})
        log_in(auth_file, played.host)
        with pytest.raises(RegistryError):
            RegistryRepository(Reference.parse(played.address("tiny"))).read_manifest("1")


BASIC = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


@pytest.mark.parametrize("secret", [PASSWORD, BASIC])
def test_refusal_when_the_registry_repeats_a_secret_does_not_show_it(secret: str, auth_file: Path):
    said = json.dumps({"errors": [{"code": "DENIED", "message": f"no Basic {secret}"}]}).encode()

    def refuse(_method: str, _path: str, _reply: Reply) -> Reply:
        if not played.shown[-1]:
            return Reply(401, headers={"WWW-Authenticate": "Basic realm=x"})
        return Reply(403, said)

    with played_registry() as played:
        played.change = refuse
        log_in(auth_file, played.host)
        with pytest.raises(RegistryError, match="answers GET with 403") as error:
            RegistryRepository(Reference.parse(played.address("tiny"))).read_manifest("1")
        assert secret not in f"{error.value}"


@pytest.mark.parametrize("target", ["ftp://127.0.0.1/x", "http://[::1/x", "file:///x"])
def test_redirect_when_it_leads_out_of_http_is_one_error(target: str):
    with played_registry() as played:
        played.change = lambda *_: Reply(307, headers={"Location": target})
        with pytest.raises(RegistryError, match="only HTTP is spoken here"):
            RegistryRepository(Reference.parse(played.address("tiny"))).read_manifest("1")


def test_tls_when_the_authority_is_unknown_is_refused_and_taken_by_ssl_cert_file(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    key, certificate = make_certificate(tmp_path / "tls")
    http = {"tls": {"certificate": str(certificate), "key": str(key)}}
    monkeypatch.setattr(Reference, "is_loopback", False)
    with running_registry(tmp_path / "registry", http=http) as running:
        with pytest.raises(RegistryError, match="is not trusted"):
            publish(whole, running.address("lab/tiny"))
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert publish(whole, running.address("lab/tiny")).blobs_sent
    with running_registry(tmp_path / "plain") as running:
        monkeypatch.setattr(connection, "FIRST_WAIT_S", 0.001)
        with pytest.raises(RegistryError, match="not trusted") as error:
            publish(whole, running.address("lab/tiny"))
        assert "--plain-http" in error.value.hint
        assert publish(whole, running.address("lab/tiny"), plain_http=True).blobs_sent


@contextmanager
def proxy_to(host: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Play a proxy that leads everything to one host; yield its address and what it was asked."""
    import urllib.request

    asked: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_words: object) -> None:
            pass

        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("Proxy-Authorization", "")))
            path = "/" + self.path.split("/", 3)[3]
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"http://{host}{path}") as answer:
                content = answer.read()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def test_proxy_when_the_environment_names_one_is_used_unless_no_proxy_names_the_host(
    monkeypatch: pytest.MonkeyPatch,
):
    with played_registry() as played, proxy_to(played.host) as (proxy, asked):
        played.put(b'{"schemaVersion": 2, "mediaType": "x"}', "1")
        monkeypatch.setenv("http_proxy", f"http://bob:pr0xy-secret@{proxy}")
        reference = Reference.parse("oci://registry.example.com/tiny")
        found = RegistryRepository(reference, plain_http=True).read_manifest("1")
        assert found is not None
        pair = base64.b64encode(b"bob:pr0xy-secret").decode()
        assert asked == [("http://registry.example.com/v2/tiny/manifests/1", f"Basic {pair}")]
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert (
            RegistryRepository(Reference.parse(played.address("tiny"))).read_manifest("1")
            is not None
        )
        assert len(asked) == 1


def test_proxy_when_it_is_away_is_not_shown_with_its_password(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection, "FIRST_WAIT_S", 0.001)
    monkeypatch.setenv("https_proxy", "http://bob:pr0xy-secret@127.0.0.1:9")
    with pytest.raises(RegistryAwayError) as error:
        RegistryRepository(Reference.parse("oci://registry.example.com/tiny")).read_manifest("1")
    assert "pr0xy-secret" not in f"{error.value}"
