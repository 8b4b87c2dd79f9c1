"""A bundle whose files were changed on purpose, with a manifest that lists them as they are now."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

ROLES = {"models": "model", "golden": "golden", "files": "file"}
"""By folder, the roles of the files that the code of phone bundles reads."""


def seal(bundle: Path) -> None:
    """List all files that the code reads in ``manifest.json``, with their sizes and digests."""
    manifest = json.loads((bundle / "manifest.json").read_text("utf-8"))
    listed = [each for each in manifest["files"] if each["role"] not in ROLES.values()]
    named = {each["path"] for each in listed}
    for folder, role in ROLES.items():
        for file in sorted((bundle / folder).rglob("*")):
            path = file.relative_to(bundle).as_posix()
            if file.is_file() and path not in named:
                data = file.read_bytes()
                digest = hashlib.sha256(data).hexdigest()
                listed.append(
                    {"path": path, "sha256": digest, "size_bytes": len(data), "role": role}
                )
    manifest["files"] = listed
    (bundle / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
