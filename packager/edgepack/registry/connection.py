"""Asks a registry over HTTP: who the user is, proxies, timeouts, redirects and further tries.

Sources: the OCI distribution specification 1.1; the token protocol as distribution documents it
("Token Authentication Specification", "Authenticate using OAuth2 refresh token").
"""

from __future__ import annotations

import json
import random
import re
import ssl
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from urllib.parse import unquote, urlencode, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from edgepack.base.terminal import make_printable
from edgepack.errors import RegistryAwayError, RegistryError, ToolError, format_one_line
from edgepack.registry.credentials import Credentials, find_credentials
from edgepack.registry.reference import Reference

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager

CONNECT_S = 10.0
READ_S = 60.0
"""Between two pieces of an answer."""
TRIES = 5
FIRST_WAIT_S = 0.5
"""Before the second try; twice as long before each further one, and up to half of it less."""
LONGEST_WAIT_S = 30.0
THREADS = 4
"""How many requests run at a time."""
BLOCK = 1 << 16
_REDIRECTS = 3
_MOST_SAID = 1 << 16
"""Bytes of an answer that is read for its error or its token."""
_PASSING = (408, 429, 500, 502, 503, 504)
_PART = re.compile(r'([a-zA-Z_]+)\s*=\s*(?:"([^"]*)"|([^\s,"]+))')

Body = Callable[[], "bytes | BinaryIO"]
"""Makes what is sent, anew for each try."""
ValueT = TypeVar("ValueT")


def retry(action: Callable[[], ValueT]) -> ValueT:
    """Return what an action returns, trying again while the registry does not answer.

    Raises:
        RegistryAwayError: It did not in :data:`TRIES` tries.
    """
    for number in range(TRIES - 1):
        try:
            return action()
        except RegistryAwayError as error:
            wait_s = FIRST_WAIT_S * 2**number * random.uniform(0.5, 1)  # noqa: S311  (jitter)
            time.sleep(min(LONGEST_WAIT_S, max(wait_s, error.wait_s)))
    return action()


@contextmanager
def pooled() -> Iterator[ThreadPoolExecutor]:
    """Yield threads for requests; after an error they begin with nothing more."""
    pool = ThreadPoolExecutor(THREADS)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class _Challenge:
    """What a registry wants to be shown: the content of ``WWW-Authenticate``."""

    scheme: str
    parts: Mapping[str, str]

    @classmethod
    def parse(cls, header: str) -> _Challenge:
        scheme, _, rest = header.strip().partition(" ")
        found = {name.lower(): quoted or bare for name, quoted, bare in _PART.findall(rest)}
        return cls(scheme.lower(), found)


class Connection:
    """Asks one registry about one repository; threads may share it.

    Plain HTTP is spoken with this machine alone, unless ``plain_http`` says otherwise. Credentials
    are read when the registry first wants some, and are shown to it and to the token server that it
    names, and to nobody that it redirects to.

    Raises:
        ToolError: urllib3 is not installed.
    """

    def __init__(self, reference: Reference, *, plain_http: bool = False) -> None:
        require_urllib3()
        self.reference = reference
        self._scheme = "http" if plain_http or reference.is_loopback else "https"
        host = "registry-1.docker.io" if reference.host == "docker.io" else reference.host
        self._origin = f"{self._scheme}://{host}"
        self.base = f"{self._origin}/v2/{reference.repository}/"
        """What paths are relative to."""
        self._lock = Lock()
        self._pools = dict(_make_pools(is_secure=self._scheme == "https"))
        self._authorization = ""
        self._expires = 0.0
        self._credentials: Credentials | None = None
        self._secrets: list[str] = []

    @contextmanager
    def ask(
        self,
        method: str,
        path: str,
        *,
        expect: Collection[int],
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
    ) -> Iterator[BaseHTTPResponse]:
        """Yield an answer with one of the expected statuses; its content is not read yet.

        Args:
            method: As HTTP has it.
            path: Relative to :attr:`base`, or a whole URL that the registry has named.
            expect: The statuses that are answers.
            headers: Beside the usual ones.
            body: Makes what is sent.

        Raises:
            RegistryAwayError: The registry does not answer, or says that it cannot now.
            RegistryError: It refuses.
            ToolError: As :func:`find_credentials`.
        """
        answer = self._follow(method, self.resolve(self.base, path), headers or {}, body)
        try:
            if answer.status not in expect:
                raise self._explain(method, answer)
            with self._explaining():
                yield answer
        finally:
            if answer.length_remaining == 0:
                answer.drain_conn()  # and so keep the connection; of others it is not worth it
            answer.close()

    def resolve(self, base: str, target: str) -> str:
        """Return where an address of the registry leads, seen from another one.

        Raises:
            RegistryError: It is none of HTTP.
        """
        try:
            url = urljoin(base, target)
            scheme = urlsplit(url).scheme
        except ValueError:
            url = scheme = ""
        if scheme not in ("http", "https"):
            raise RegistryError(
                f"{self.reference.host} leads to {target.partition('?')[0][:100]!r}, and only HTTP"
                " is spoken here",
                hint=_ASK_OWNER,
                where=str(self.reference),
            )
        return url

    def _follow(
        self, method: str, url: str, headers: Mapping[str, str], body: Body | None
    ) -> BaseHTTPResponse:
        """Return an answer that leads nowhere else; whoever it leads to is not shown who we are."""
        for _ in range(_REDIRECTS + 1):
            answer = self._ask_as_user(method, url, headers, body)
            target = answer.headers.get("Location", "")
            is_moved = answer.status in (301, 302, 303, 307, 308) and target
            if not is_moved or method not in ("GET", "HEAD"):
                return answer
            answer.close()
            url = self.resolve(url, target)
        raise RegistryError(
            f"{self.reference.host} leads from one address to the next without an end",
            hint="look at what is in front of the registry: a proxy, or its storage",
        )

    def _ask_as_user(
        self, method: str, url: str, headers: Mapping[str, str], body: Body | None
    ) -> BaseHTTPResponse:
        if not url.startswith(f"{self._origin}/"):
            return self._send(method, url, headers, body)
        if self._expires and time.monotonic() > self._expires:
            self._authorization = ""
        shown = self._authorization
        answer = self._send(method, url, {**headers, **self._show(shown)}, body)
        if answer.status != 401:
            return answer
        challenge = answer.headers.get("WWW-Authenticate", "")
        answer.close()
        with self._lock:
            if self._authorization == shown:  # else another thread was faster
                self._authorize(_Challenge.parse(challenge), again=bool(shown))
        answer = self._send(method, url, {**headers, **self._show(self._authorization)}, body)
        if answer.status == 401:
            answer.close()
            raise self._make_refusal()
        return answer

    @staticmethod
    def _show(authorization: str) -> dict[str, str]:
        return {"Authorization": authorization} if authorization else {}

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: Body | None
    ) -> BaseHTTPResponse:
        if self._scheme == "https" and urlsplit(url).scheme != "https":
            raise RegistryError(
                f"{self.reference.host} leads from https to {url.partition('?')[0]!r}",
                hint="tell the registry its own address: distribution's 'http: host', or"
                " X-Forwarded-Proto of the proxy in front of it",
            )
        with self._explaining():
            sent = body() if body else None
            try:
                return self._find_pool(url).urlopen(
                    method,
                    url,
                    body=sent,
                    headers={"User-Agent": "edgepack", **headers},
                    redirect=False,
                    preload_content=False,
                    decode_content=False,
                )
            finally:
                if sent is not None and not isinstance(sent, bytes):
                    sent.close()

    def _find_pool(self, url: str) -> PoolManager:
        """Return the connections to use, directly or by the proxy that the environment names."""
        parts = urlsplit(url)
        return self._pools["" if proxy_bypass(parts.netloc) else parts.scheme]

    def _authorize(self, challenge: _Challenge, *, again: bool) -> None:
        """Get what the registry wants to be shown."""
        credentials = self._credentials = find_credentials(self.reference)
        self._secrets = []
        if credentials:
            basic = credentials.basic.removeprefix("Basic ")
            self._secrets = [credentials.password, credentials.identity_token, basic]
        if challenge.scheme == "bearer" and "realm" in challenge.parts:
            self._authorization = f"Bearer {retry(lambda: self._get_token(challenge, credentials))}"
        elif credentials and credentials.user and challenge.scheme == "basic" and not again:
            self._authorization = credentials.basic
        else:
            raise self._make_refusal()

    def _get_token(self, challenge: _Challenge, credentials: Credentials | None) -> str:
        """Return the token server's token; without credentials it is an anonymous one."""
        asked = {
            name: challenge.parts[name] for name in ("service", "scope") if name in challenge.parts
        }
        realm = self.resolve("", challenge.parts["realm"])
        if credentials and credentials.identity_token:
            form = {
                "grant_type": "refresh_token",
                "client_id": "edgepack",
                "refresh_token": credentials.identity_token,
                **asked,
            }
            kind = {"Content-Type": "application/x-www-form-urlencoded"}
            answer = self._send("POST", realm, kind, lambda: urlencode(form).encode())
        else:
            shown = self._show(credentials.basic if credentials else "")
            separator = "&" if "?" in realm else "?"
            answer = self._send("GET", f"{realm}{separator}{urlencode(asked)}", shown, None)
        try:
            if answer.status in (400, 401, 403):
                raise self._make_refusal()
            if answer.status != 200:
                raise self._explain("GET", answer)
            return self._read_token(answer)
        finally:
            answer.close()

    def _read_token(self, answer: BaseHTTPResponse) -> str:
        with self._explaining():
            content = answer.read(_MOST_SAID)
        try:
            found: Any = json.loads(content)
            token = found.get("token") or found.get("access_token")
            seconds = float(found.get("expires_in") or 60)
        except (ValueError, AttributeError, TypeError, RecursionError):
            token, seconds = None, 0.0
        if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
            raise RegistryError(
                f"the token server of {self.reference.host} answers without a token",
                hint=_ASK_OWNER,
            )
        self._secrets.append(token)
        # A bit early: an upload begins with it, and has to end with it.
        self._expires = time.monotonic() + 0.8 * seconds
        return token

    def _make_refusal(self) -> RegistryError:
        host = self.reference.host
        if self._credentials is None:
            problem = f"{host} wants to know who you are, and nothing is kept for it here"
        else:
            who = self._credentials.user or "a token"
            problem = f"{host} does not take what is kept for it here, of {who}"
        return RegistryError(
            problem,
            hint=f"log in with podman login {host}, docker login {host} or skopeo login {host};"
            " REGISTRY_AUTH_FILE may name another file of credentials",
            where=str(self.reference),
        )

    def _explain(self, method: str, answer: BaseHTTPResponse) -> RegistryError:
        """Return the error that an answer stands for."""
        said = self._read_said(answer)
        problem = f"{self.reference.host} answers {method} with {answer.status}{said}"
        where = str(self.reference)
        if answer.status in _PASSING:
            away = RegistryAwayError(problem, hint="try again later", where=where)
            seconds = answer.headers.get("Retry-After", "")
            away.wait_s = float(seconds) if re.fullmatch(r"[0-9]{1,4}", seconds) else 0.0
            return away
        if answer.status in (401, 403):
            hint = "ask who keeps the registry for the right to do this in this repository"
        elif answer.status == 404:
            hint = "look at the host, the repository and the tag"
        else:
            hint = _ASK_OWNER
        refusal = RegistryError(problem, hint=hint, where=where)
        refusal.status = answer.status
        return refusal

    def _read_said(self, answer: BaseHTTPResponse) -> str:
        """Return what a registry says of its refusal, after a colon; without any secret."""
        with self._explaining():
            content = answer.read(_MOST_SAID)
        try:
            first = json.loads(content)["errors"][0]
            said = f"{first.get('code', '')} {first.get('message', '')}".strip()
        except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
            return ""
        if any(secret and secret in said for secret in self._secrets):
            return ""
        return f": {make_printable(format_one_line(said))}"

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Turn what urllib3 raises into one clear error."""
        import urllib3.exceptions as problems

        host, where = self.reference.host, str(self.reference)
        try:
            yield
        except problems.SSLError as error:
            raise RegistryError(
                f"{host} is not trusted: {format_one_line(str(error))}",
                hint="SSL_CERT_FILE may name the certificates of your own authority; a registry"
                " without TLS needs --plain-http",
                where=where,
            ) from error
        except (problems.LocationValueError, UnicodeError) as error:
            raise RegistryError(
                f"{host} leads to an address that is none", hint=_ASK_OWNER, where=where
            ) from error
        except problems.HTTPError as error:
            reason = format_one_line(str(error.args[-1] if error.args else error))
            raise RegistryAwayError(
                f"{host} does not answer: {reason or type(error).__name__}",
                hint="look whether it runs and can be reached from here; HTTPS_PROXY names a proxy",
                where=where,
            ) from error


_ASK_OWNER = "look at the registry's log, or ask who keeps it"


def _make_pools(*, is_secure: bool) -> Iterator[tuple[str, PoolManager]]:
    """Yield connections that are direct, and those for each scheme as the environment says."""
    import urllib3

    settings: dict[str, Any] = {
        "timeout": urllib3.Timeout(connect=CONNECT_S, read=READ_S),
        "retries": False,
        # As urllib3 makes one by itself, but once: the system's authorities take 80 ms to read.
        "ssl_context": ssl.create_default_context() if is_secure else None,
        "maxsize": THREADS,
        "blocksize": BLOCK,
    }
    yield "", urllib3.PoolManager(**settings)
    proxies = getproxies()
    for scheme in ("http", "https"):
        yield scheme, _make_pool(proxies.get(scheme, ""), settings)


def _make_pool(proxy: str, settings: dict[str, Any]) -> PoolManager:
    import urllib3
    from urllib3.exceptions import HTTPError

    if not proxy:
        return urllib3.PoolManager(**settings)
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    shown = urllib3.make_headers(proxy_basic_auth=pair) if parts.username else None
    try:
        address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        return urllib3.ProxyManager(address, proxy_headers=shown, **settings)
    except (HTTPError, ValueError) as error:
        # Without the address, which may hold a password.
        raise ToolError(
            "the environment names a proxy that is no address",
            hint="write HTTPS_PROXY and HTTP_PROXY as http://HOST:PORT",
        ) from error


def require_urllib3() -> None:
    """Check that what speaks HTTP is installed.

    Raises:
        ToolError: It is not.
    """
    if find_spec("urllib3") is None:
        raise ToolError(
            "registries need urllib3, which is not installed",
            hint="pip install 'edgepack[registry]'",
        )
