"""Publishes bundles for tests of devices that pull: what ``edgepack publish`` writes, by itself.

It knows the artifact from its description alone (docs/pulling.md), so that the agent is held
against that and not against the code of the other side; and it writes wrong ones, too.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from edgepack.deploy.transfer.chunks import cut_file

from tests.support.servers.tools import require_tool

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
SIGNATURE_TYPE = "application/vnd.edgepack.signature.v1"
ENTRY_TYPE = "application/vnd.edgepack.channel.v1+json"
TITLE = "org.opencontainers.image.title"
EMPTY = b"{}"


def make_key(folder: Path, name: str) -> Path:
    """Make an SSH key that signs; skip a test where there is no OpenSSH."""
    require_tool("ssh-keygen")
    path = folder / name
    if not path.exists():
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)]
        subprocess.run(argv, check=True)
    return path


def format_signer(key: Path, name: str = "release@example.com") -> str:
    """Return the line of allowed signers for a key."""
    return f'{name} namespaces="edgepack,edgepack-channel" {Path(f"{key}.pub").read_text()}'


def sign(message: bytes, key: Path, namespace: str) -> bytes:
    """Return an SSH signature."""
    argv = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", namespace]
    return subprocess.run(argv, input=message, capture_output=True, check=True).stdout


@dataclass
class Publisher:
    """Writes into one repository of a registry without logins."""

    host: str
    repository: str
    pushed: set[str] = field(default_factory=set)

    def put_blob(self, content: bytes) -> dict[str, Any]:
        """Write a blob, and return its digest and size."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if digest not in self.pushed:
            begun = self._ask("POST", "blobs/uploads/", b"", {})
            place = urljoin(f"http://{self.host}", begun.headers["Location"])
            url = f"{place}{'&' if '?' in place else '?'}digest={digest}"
            self._send("PUT", url, content, {"Content-Type": "application/octet-stream"})
            self.pushed.add(digest)
        return {"digest": digest, "size": len(content)}

    def put_manifest(self, manifest: Mapping[str, Any], tag: str | None = None) -> dict[str, Any]:
        """Write a manifest by its digest, or as a tag, and return its digest and size."""
        content = json.dumps(manifest).encode()
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        kind = {"Content-Type": str(manifest["mediaType"])}
        self._ask("PUT", f"manifests/{tag or digest}", content, kind)
        return {"digest": digest, "size": len(content)}

    def publish(
        self,
        bundle: Path,
        key: Path | None,
        *,
        replaced: Mapping[str, bytes] = {},
        with_chunks: bool = True,
    ) -> Mapping[str, Any]:
        """Write a bundle with its signature, and return its image manifest.

        ``replaced`` are files whose layers have another content than the bundle's manifest says.
        """
        text = (bundle / "manifest.json").read_bytes()
        document = json.loads(text)
        paths = [entry["path"] for entry in document["files"]]
        chunks = {
            path: [(chunk.sha256, chunk.size) for chunk in cut_file(bundle / path)]
            for path in paths
            if (bundle / path).stat().st_size > 1 << 16
        }
        contents = {"manifest.json": text}
        contents |= {path: (bundle / path).read_bytes() for path in paths}
        if with_chunks:
            table = {"schema_version": 1, "files": chunks}
            contents[".edgepack/chunks.json"] = json.dumps(table).encode()
        contents |= replaced
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": "application/vnd.cncf.model.manifest.v1+json",
            "config": {
                "mediaType": "application/vnd.cncf.model.config.v1+json",
                **self.put_blob(b'{"descriptor": {"name": "tiny"}}'),
            },
            "layers": [self.make_layer(path, content) for path, content in contents.items()],
            "annotations": {"dev.edgepack.manifest": hashlib.sha256(text).hexdigest()},
        }
        self.put_manifest(manifest)
        if key is not None:
            signed = {"manifest.json.sig": sign(text, key, "edgepack")}
            self.refer(manifest, SIGNATURE_TYPE, signed)
        return manifest

    def make_layer(self, title: str, content: bytes) -> dict[str, Any]:
        """Write a file's blob, and return its descriptor."""
        kind = "application/vnd.cncf.model.weight.v1.raw"
        return {"mediaType": kind, **self.put_blob(content), "annotations": {TITLE: title}}

    def refer(
        self,
        subject: Mapping[str, Any],
        kind: str,
        files: Mapping[str, bytes],
        **annotations: str,
    ) -> None:
        """Write what refers to a manifest, and the tag that lists it (there is no API here)."""
        content = json.dumps(subject).encode()
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": kind,
            "config": {"mediaType": "application/vnd.oci.empty.v1+json", **self.put_blob(EMPTY)},
            "layers": [self.make_layer(title, text) for title, text in files.items()],
            "subject": {"mediaType": MANIFEST_TYPE, "digest": digest, "size": len(content)},
        }
        made = {
            "mediaType": MANIFEST_TYPE,
            **self.put_manifest(manifest),
            "artifactType": kind,
            "annotations": annotations,
        }
        tag = digest.replace(":", "-")
        try:
            listed = json.loads(
                self._ask("GET", f"manifests/{tag}", None, {"Accept": INDEX_TYPE}).body
            )
        except urllib.error.HTTPError as error:
            error.close()
            listed = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": []}
        listed["manifests"].append(made)
        self.put_manifest(listed, tag)

    def move(
        self,
        manifest: Mapping[str, Any],
        channel: str,
        sequence: int,
        key: Path | None,
        /,
        **changes: Any,
    ) -> None:
        """Point a channel at a bundle, with a signed entry; without a key only the tag moves."""
        if key is not None:
            entry = {
                "schema_version": 1,
                "channel": channel,
                "project": "tiny",
                "target": "linux-x86-64",
                "release": manifest["annotations"]["dev.edgepack.manifest"],
                "sequence": sequence,
                "downgrade": False,
                **changes,
            }
            text = json.dumps(entry).encode()
            signed = {"channel.json": text, "channel.json.sig": sign(text, key, "edgepack-channel")}
            self.refer(manifest, ENTRY_TYPE, signed, **{"dev.edgepack.channel": channel})
        self.put_manifest(manifest, channel)

    def _ask(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> _Answer:
        url = f"http://{self.host}/v2/{self.repository}/{path}"
        return self._send(method, url, body, headers)

    def _send(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]
    ) -> _Answer:
        request = urllib.request.Request(url, body, dict(headers), method=method)
        with urllib.request.urlopen(request, timeout=30.0) as answer:
            return _Answer(dict(answer.headers), answer.read())


@dataclass(frozen=True)
class _Answer:
    headers: dict[str, str]
    body: bytes
