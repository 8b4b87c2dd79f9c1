"""A token server for a registry, as distribution's "Token Authentication" has it, and its TLS keys.

The registry is told to trust the certificate that the tokens carry (``rootcertbundle``).
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from tests.support.servers.registry import PASSWORD, USER

ISSUER, SERVICE = "tests", "registry-of-tests"
IDENTITY_TOKEN = "identity-of-alice"


@dataclass
class TokenServer:
    """What it was asked, and how long its tokens last."""

    realm: str = ""
    auth: Mapping[str, Any] = field(default_factory=dict)
    """The registry's ``auth``."""
    asked: list[str] = field(default_factory=list)
    """Who asked for what: ``alice repository:tiny:pull,push``."""
    lasts_s: int = 300


def make_certificate(folder: Path, name: str = "127.0.0.1") -> tuple[Path, Path]:
    """Write a key and a certificate that it has signed itself; return both files."""
    folder.mkdir(parents=True, exist_ok=True)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(name))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(own)
        .issuer_name(own)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(certificate.public_bytes(pem))
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.TraditionalOpenSSL
    (folder / "key.pem").write_bytes(key.private_bytes(pem, form, plain))
    return folder / "key.pem", folder / "cert.pem"


@contextmanager
def running_token_server(folder: Path) -> Iterator[TokenServer]:
    """Give tokens to :data:`USER` for everything, and to others for pulling."""
    key_file, certificate = make_certificate(folder)
    key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    assert isinstance(key, rsa.RSAPrivateKey)
    der = x509.load_pem_x509_certificate(certificate.read_bytes()).public_bytes(
        serialization.Encoding.DER
    )
    tokens = TokenServer()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_words: object) -> None:
            pass

        def do_GET(self) -> None:
            pair = base64.b64decode(self.headers.get("Authorization", " ").split(" ")[1]).decode()
            if pair not in ("", f"{USER}:{PASSWORD}"):
                self.send_error(401)
                return
            self._give(pair.partition(":")[0], parse_qs(urlsplit(self.path).query))

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            if form.get("refresh_token") != [IDENTITY_TOKEN]:
                self.send_error(401)
                return
            self._give(f"{USER} by identity", form)

        def _give(self, user: str, words: dict[str, list[str]]) -> None:
            [scope] = words.get("scope", [""])
            tokens.asked.append(f"{user} {scope}".strip())
            kind, name, actions = scope.split(":")
            allowed = actions.split(",") if user else ["pull"]
            access = [{"type": kind, "name": name, "actions": allowed}]
            token = _sign(key, der, user, access, tokens.lasts_s)
            content = json.dumps({"token": token, "expires_in": tokens.lasts_s}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        tokens.realm = f"http://127.0.0.1:{server.server_port}/token"
        tokens.auth = {
            "token": {
                "realm": tokens.realm,
                "service": SERVICE,
                "issuer": ISSUER,
                "rootcertbundle": str(certificate),
            }
        }
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield tokens
        finally:
            server.shutdown()
            thread.join()


def _sign(
    key: rsa.RSAPrivateKey, certificate: bytes, user: str, access: object, lasts_s: int
) -> str:
    now = int(time.time())
    head = {"typ": "JWT", "alg": "RS256", "x5c": [base64.b64encode(certificate).decode()]}
    claims = {
        "iss": ISSUER,
        "sub": user,
        "aud": SERVICE,
        "exp": now + lasts_s,
        "nbf": now - 60,
        "iat": now,
        "jti": str(now),
        "access": access,
    }
    message = f"{_encode(json.dumps(head).encode())}.{_encode(json.dumps(claims).encode())}"
    signature = key.sign(message.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{message}.{_encode(signature)}"


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
