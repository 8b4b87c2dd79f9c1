"""Read from an OCI registry, over connections that break and through proxies.

The protocol is the OCI distribution specification 1.1; tokens are asked for as the Docker
registry's token specification says. What is named by a digest is checked against it. No decision
depends on this device's clock, but for a certificate's validity, which TLS itself checks by it.

Needs Python 3.8 or newer, and nothing else.
"""

import base64
import email.utils
import hashlib
import http.client
import json
import os
import random
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

ANSWER_S = 60.0
"""How long a registry may be silent."""
TRIES = 6
"""Of one thing without a byte of progress."""
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
BLOCK_BYTES = 1 << 17
GAP_BYTES = 1 << 16
"""Bytes that are read and dropped rather than asking once more."""
MANIFEST_BYTES = 4 << 20
"""The most bytes that a registry has to take of a manifest (distribution-spec, "Pushing
Manifests")."""
PAGES = 8
DOCKER_HUB = "registry-1.docker.io"
"""What answers for ``docker.io``: that name itself has pages for people."""

IMAGE_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
IMAGE_INDEX = "application/vnd.oci.image.index.v1+json"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
AGAIN = (408, 425, 429, 500, 502, 503, 504)
PROXY = r"https?://([^\s/?#@]+@)?([^][\s/?#@:]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?/?"
"""A proxy's address, with a login or none."""
NOT_YET_VALID, EXPIRED = 9, 10
"""``X509_V_ERR_CERT_NOT_YET_VALID`` and ``X509_V_ERR_CERT_HAS_EXPIRED``, openssl/x509_vfy.h."""


class Problem(Exception):  # noqa: N818
    """Why a run ends: a word for reports, and a sentence."""

    def __init__(self, result: str, text: str) -> None:
        super().__init__(text)
        self.result = result


class _Again(Exception):  # noqa: N818
    """What may work in a while."""

    def __init__(self, result: str, text: str, after_s: float = 0.0) -> None:
        super().__init__(text)
        self.result = result
        self.after_s = after_s


class Login(NamedTuple):
    """What a registry is told about who asks; nothing of it is ever printed."""

    username: str
    password: str

    def format_basic(self) -> str:
        """Return the header's value (RFC 7617)."""
        text = "%s:%s" % (self.username, self.password)
        return "Basic " + base64.b64encode(text.encode("utf-8")).decode("ascii")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to where a registry keeps its blobs; what is secret stays behind."""

    def __init__(self, schemes: List[str]) -> None:
        self.schemes = schemes

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        if urllib.parse.urlsplit(newurl).scheme not in self.schemes:
            raise Problem("registry", "it points to an address that is not allowed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class Registry:
    """One repository of a registry.

    Args:
        host: Its name or address, with a port if it is not the usual one.
        repository: ``team/detector``.
        login: Who asks; None where anybody may read.
        plain_http: Whether it is talked to without TLS.
        ca: A file of certificates to trust instead of the system's.
        patience_s: How long all pauses may take together, before a run gives up.
    """

    def __init__(
        self,
        host: str,
        repository: str,
        *,
        login: Optional[Login] = None,
        plain_http: bool = False,
        ca: Optional[str] = None,
        patience_s: float = 120.0,
    ) -> None:
        scheme = "http" if plain_http else "https"
        place = DOCKER_HUB if host == "docker.io" else host
        self.base = "%s://%s/v2/%s/" % (scheme, place, repository)
        self.repository = repository
        self.login = login
        self.patience_s = patience_s
        self.authorization: Optional[str] = None
        self.requests = 0
        self.received = 0
        """Bytes of answers, without their headers."""
        self.clock_offset_s: Optional[float] = None
        """By how much the registry's clock is ahead of this device's; reported, never used."""
        self.schemes = ["https", "http"] if plain_http else ["https"]
        try:
            context = ssl.create_default_context(cafile=ca)
        except (OSError, ValueError):
            raise Problem("settings", "%s has no certificates that can be used" % ca) from None
        self.opener = urllib.request.OpenerDirector()
        # No handlers of files and FTP, which a redirect could name.
        for handler in (
            urllib.request.ProxyHandler(),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(context=context),
            urllib.request.HTTPDefaultErrorHandler(),
            _Redirects(self.schemes),
            urllib.request.HTTPErrorProcessor(),
        ):
            self.opener.add_handler(handler)

    def find_digest(self, tag: str) -> str:
        """Return which manifest a tag names: one small request.

        Raises:
            Problem: It cannot be found out, or there is no such tag.
        """
        headers = {"Accept": IMAGE_MANIFEST, "Cache-Control": "no-cache"}
        with self.open("manifests/" + tag, headers, method="HEAD") as answer:
            found = answer.headers.get("Docker-Content-Digest") or ""
        if DIGEST.fullmatch(found):
            return found
        # A registry need not say it (distribution-spec: the header MAY be there).
        content = self.read_small("manifests/" + tag, headers, MANIFEST_BYTES)
        return "sha256:" + hashlib.sha256(content).hexdigest()

    def read_manifest(self, digest: str) -> Dict[str, Any]:
        """Return a manifest by its digest.

        Raises:
            Problem: It cannot be had, or is another one.
        """
        headers = {"Accept": "%s, %s" % (IMAGE_MANIFEST, IMAGE_INDEX)}
        content = self.read_small("manifests/" + digest, headers, MANIFEST_BYTES)
        require_digest(content, digest)
        return parse_object(content, "a manifest")

    def read_blob(self, digest: str, most: int) -> bytes:
        """Return a small blob by its digest.

        Raises:
            Problem: It cannot be had, is longer than ``most`` bytes, or is another one.
        """
        content = self.read_small("blobs/" + digest, {}, most)
        require_digest(content, digest)
        return content

    def list_referrers(self, digest: str, kind: str) -> List[Dict[str, Any]]:
        """Return the descriptors of what refers to a manifest, of one artifact type.

        A registry without the referrers API has them under a tag (distribution-spec, "Referrers
        Tag Schema").

        Raises:
            Problem: They cannot be had.
        """
        headers = {"Accept": IMAGE_INDEX}
        path: Optional[str] = "referrers/%s?artifactType=%s" % (digest, urllib.parse.quote(kind))
        found: List[Dict[str, Any]] = []
        for _ in range(PAGES):
            if path is None:
                break
            try:
                content, told = self._read(path, headers, MANIFEST_BYTES)
            except Problem as problem:
                if problem.result != "missing":
                    raise
                return self._list_tagged(digest, kind, headers)
            found += list_descriptors(content)
            path = self._find_next(told.get("Link") or "")
        return [one for one in found if one.get("artifactType") == kind]

    def _list_tagged(
        self, digest: str, kind: str, headers: Mapping[str, str]
    ) -> List[Dict[str, Any]]:
        try:
            path = "manifests/" + digest.replace(":", "-")
            found = list_descriptors(self.read_small(path, headers, MANIFEST_BYTES))
        except Problem as problem:
            if problem.result != "missing":
                raise
            return []
        return [one for one in found if one.get("artifactType") == kind]

    def _find_next(self, link: str) -> Optional[str]:
        """Return the path of the next page, as RFC 8288's ``Link`` names it; it stays here."""
        match = re.match(r"<([^>]*)>", link)
        if not match:
            return None
        found = urllib.parse.urljoin(self.base, match[1])
        return found[len(self.base) :] if found.startswith(self.base) else None

    def read_small(self, path: str, headers: Mapping[str, str], most: int) -> bytes:
        """Return a whole answer."""
        return self._read(path, headers, most)[0]

    def _read(self, path: str, headers: Mapping[str, str], most: int) -> Tuple[bytes, Any]:
        """Return a whole answer and its headers; one that broke is asked for once more."""
        for attempt in range(TRIES):
            with self.open(path, headers) as answer:
                try:
                    return self._read_all(answer, most), answer.headers
                except _Again as again:
                    self.pause(attempt, again.result, str(again))
        raise AssertionError("pause() gives up")

    def _read_all(self, answer: Any, most: int) -> bytes:
        content = b""
        for block in read_blocks(answer):
            content += block
            self.received += len(block)
            if len(content) > most:
                raise Problem("corrupt", "an answer has more than %d bytes" % most)
        announced = answer.headers.get("Content-Length") or ""
        if re.fullmatch("[0-9]{1,15}", announced) and int(announced) > len(content):
            raise _Again("offline", "an answer ends too early")
        return content

    def open(self, path: str, headers: Mapping[str, str], method: str = "GET") -> Any:
        """Return an answer once there is one that is good.

        Raises:
            Problem: There is none, also after some tries; ``missing`` for 404.
        """
        for attempt in range(TRIES):
            try:
                return self._ask_with_login(path, headers, method)
            except _Again as again:
                self.pause(attempt, again.result, str(again), again.after_s)
        raise AssertionError("pause() gives up")

    def _ask_with_login(self, path: str, headers: Mapping[str, str], method: str) -> Any:
        """Make one request; where the registry wants a login, or a new token, once more with it."""
        for is_new in (False, True):
            try:
                return self._ask(self.base + path, headers, method, self.authorization)
            except urllib.error.HTTPError as error:
                error.close()
                if error.code != http.client.UNAUTHORIZED or is_new or not self._is_own(error):
                    raise self._explain(error, path) from None
                challenge = error.headers
            self.authorization = self._authorize(challenge)
        raise AssertionError("the second answer is returned or raised")

    def _is_own(self, error: urllib.error.HTTPError) -> bool:
        """Return whether the registry itself answered, and not one that it leads to."""
        own, other = (urllib.parse.urlsplit(url)[:2] for url in (self.base, error.url))
        return own == other

    def _ask(
        self, url: str, headers: Mapping[str, str], method: str, authorization: Optional[str]
    ) -> Any:
        """Make one request."""
        request = urllib.request.Request(url, headers=dict(headers), method=method)  # noqa: S310
        if authorization is not None:
            request.add_unredirected_header("Authorization", authorization)
        self.requests += 1
        try:
            answer = self.opener.open(request, timeout=ANSWER_S)
        except urllib.error.HTTPError as error:
            self._note_clock(error.headers)
            if error.code in AGAIN:
                error.close()
                raise _Again(
                    "registry", "it answers %d" % error.code, find_delay(error.headers)
                ) from None
            raise
        except urllib.error.URLError as error:
            raise explain_connection(error.reason) from None
        except (OSError, http.client.HTTPException) as error:
            raise explain_connection(error) from None
        self._note_clock(answer.headers)
        return answer

    def _note_clock(self, headers: Any) -> None:
        said = email.utils.parsedate_tz(headers.get("Date") or "")
        if said is not None:
            self.clock_offset_s = email.utils.mktime_tz(said) - time.time()

    def _explain(self, error: urllib.error.HTTPError, path: str) -> Problem:
        """Return what an answer means that no other try changes."""
        if error.code in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            who = "with its credentials" if self.login else "without credentials"
            return Problem(
                "denied", "the registry lets this device not read %s %s" % (self.repository, who)
            )
        if error.code == http.client.NOT_FOUND:
            return Problem("missing", "the registry has no %s of %s" % (path, self.repository))
        return Problem("registry", "the registry answers %d to %s" % (error.code, path))

    def _authorize(self, headers: Any) -> str:
        """Return what to answer to a challenge (RFC 9110, 11.6.1)."""
        for challenge in headers.get_all("WWW-Authenticate") or []:
            scheme, _, rest = challenge.partition(" ")
            if scheme.lower() == "basic" and self.login:
                return self.login.format_basic()
            if scheme.lower() == "bearer":
                return self._ask_token(dict(re.findall(r'([a-z]+)="([^"]*)"', rest)))
        raise Problem("denied", "the registry wants a login in no way that is known here")

    def _ask_token(self, challenge: Mapping[str, str]) -> str:
        realm = challenge.get("realm", "")
        if urllib.parse.urlsplit(realm).scheme not in self.schemes:
            raise Problem("denied", "the registry sends logins to an address without TLS")
        scope = challenge.get("scope") or "repository:%s:pull" % self.repository
        asked = {"scope": scope}
        if "service" in challenge:
            asked["service"] = challenge["service"]
        url = realm + ("&" if "?" in realm else "?") + urllib.parse.urlencode(asked)
        login = self.login.format_basic() if self.login else None
        try:
            with self._ask(url, {}, "GET", login) as answer:
                said = parse_object(self._read_all(answer, MANIFEST_BYTES), "a token")
        except urllib.error.HTTPError as error:
            error.close()
            raise Problem("denied", "the registry gives no token: %d" % error.code) from None
        token = said.get("token") or said.get("access_token")
        if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
            raise Problem("denied", "the registry gives something else than a token")
        return "Bearer " + token

    def pause(self, attempt: int, result: str, text: str, after_s: float = 0.0) -> None:
        """Wait before another try, longer each time and never as long as others do; or give up."""
        longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempt)
        seconds = after_s + random.SystemRandom().uniform(longest / 2, longest)
        if attempt + 1 >= TRIES or seconds > self.patience_s:
            raise Problem(result, text)
        self.patience_s -= seconds
        time.sleep(seconds)


class Blob:
    """A large blob, read piece by piece; a connection that breaks is taken up where it was."""

    def __init__(self, registry: Registry, digest: str, size: int) -> None:
        self.registry = registry
        self.digest = digest
        self.size = size
        self.answer: Any = None
        self.at = 0
        self.end = 0

    def close(self) -> None:
        """Close the connection."""
        if self.answer is not None:
            self.answer.close()
            self.answer = None

    def read(self, offset: int, size: int, until: int) -> bytes:
        """Return so many bytes from a place on.

        Args:
            offset: Where.
            size: How many.
            until: To where more will be read soon: so far one request goes.

        Raises:
            Problem: They cannot be had.
        """
        data = bytearray()
        attempt = 0
        while len(data) < size:
            at = offset + len(data)
            try:
                self._seek(at, until)
                block = self._take(size - len(data))
            except _Again as again:
                self.close()
                self.registry.pause(attempt, again.result, str(again))
                attempt += 1
                continue
            data += block
            attempt = 0
        return bytes(data)

    def _seek(self, offset: int, until: int) -> None:
        is_near = self.at <= offset < self.end and offset - self.at <= GAP_BYTES
        is_whole = self.at <= offset and self.end == self.size
        if self.answer is None or not (is_near or is_whole):
            self.close()
            self._open(offset, until)
        while self.at < offset:
            self._take(offset - self.at)

    def _open(self, offset: int, until: int) -> None:
        """Ask for a range; a registry that knows none gives all of it (RFC 9110, 14.2)."""
        is_all = offset == 0 and until >= self.size
        headers = {} if is_all else {"Range": "bytes=%d-%d" % (offset, until - 1)}
        self.answer = self.registry.open("blobs/" + self.digest, headers)
        self.at, self.end = 0, self.size
        if self.answer.status == http.client.PARTIAL_CONTENT:
            said = self.answer.headers.get("Content-Range") or ""
            if not said.startswith("bytes %d-" % offset):
                raise Problem("corrupt", "the registry answers another range than asked for")
            self.at, self.end = offset, until

    def _take(self, size: int) -> bytes:
        try:
            block: bytes = self.answer.read(min(size, BLOCK_BYTES))
        except (OSError, http.client.HTTPException) as error:
            raise explain_connection(error) from None
        if not block:
            raise _Again("offline", "a download ends too early")
        self.at += len(block)
        self.registry.received += len(block)
        return block


def read_blocks(answer: Any) -> Iterator[bytes]:
    """Yield an answer's body."""
    while True:
        try:
            block = answer.read(BLOCK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise explain_connection(error) from None
        if not block:
            return
        yield block


def explain_connection(error: object) -> Exception:
    """Return what it means that there is no answer."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in (NOT_YET_VALID, EXPIRED):
            now = time.strftime("%Y-%m-%d", time.gmtime())
            return Problem(
                "clock",
                "the registry's certificate is not valid on %s, which is today by this device's"
                " clock: set the clock, or renew the certificate" % now,
            )
        return Problem("tls", "the registry's certificate is not trusted: %s" % error)
    if isinstance(error, ssl.SSLError):
        return _Again("tls", "TLS with the registry fails: %s" % error)
    return _Again("offline", "the registry is not reached: %s" % hide_logins(str(error)))


def hide_logins(text: str) -> str:
    """Return a text without what stands before the ``@`` of addresses in it."""
    return re.sub(r"//[^/@\s]*@", "//", text)


def find_delay(headers: Any) -> float:
    """Return for how many seconds a registry asks to be left alone (RFC 9110, 10.2.3).

    A date counts from the registry's own ``Date``: this device's clock may be anything.
    """
    said = (headers.get("Retry-After") or "").strip()
    if re.fullmatch("[0-9]{1,15}", said):
        return float(said)
    until, now = (email.utils.parsedate_tz(text) for text in (said, headers.get("Date") or ""))
    if until is None or now is None:
        return 0.0
    return max(0.0, float(email.utils.mktime_tz(until) - email.utils.mktime_tz(now)))


def require_digest(content: bytes, digest: str) -> None:
    """Raise unless a content is the one that a digest names."""
    if "sha256:" + hashlib.sha256(content).hexdigest() != digest:
        raise Problem("corrupt", "what the registry gives for %s is something else" % digest)


def parse_object(content: bytes, what: str) -> Dict[str, Any]:
    """Return a JSON object."""
    try:
        found = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Problem("corrupt", "%s of the registry is no JSON object" % what)
    return found


def list_descriptors(content: bytes) -> List[Dict[str, Any]]:
    """Return the descriptors of an index, those that can be ones."""
    found = parse_object(content, "an index").get("manifests")
    listed = found if isinstance(found, list) else []
    return [one for one in listed if isinstance(one, dict) and is_digest(one.get("digest"))]


def is_digest(value: object) -> bool:
    """Return whether a value is a digest of the only kind that is used here."""
    return isinstance(value, str) and DIGEST.fullmatch(value) is not None


def use_proxy(proxy: Optional[str], no_proxy: Optional[str]) -> None:
    """Let all connections of this process go through a proxy: urllib reads the environment.

    Raises:
        Problem: It is no address. urllib would say so with all of it, the password, too.
    """
    if proxy:
        if not re.fullmatch(PROXY, proxy):
            raise Problem("settings", "the proxy of credentials.json is no address")
        os.environ.update(http_proxy=proxy, https_proxy=proxy)
    if no_proxy:
        os.environ["no_proxy"] = no_proxy
