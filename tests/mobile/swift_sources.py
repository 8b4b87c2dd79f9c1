"""Where Swift takes a bundle's files from: the scenarios of ``sources.py`` on Linux.

A bundle's module is compiled as it lies in it, and so is a program that takes steps as an app does.
CryptoKit is a mirror of its API over OpenSSL.
"""

from __future__ import annotations

import atexit
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.mobile import sources
from tests.mobile.proofs import Proof
from tests.mobile.signatures import DYNAMIC_BATCH
from tests.mobile.sources import Phone, Step
from tests.mobile.swift_models import LINK, SWIFT, Compiled, compiled

PASSED_OVER = replace(
    DYNAMIC_BATCH,
    name="passed-over",
    variants="[{backend: coreml, recipe: fp32}, {backend: cpu, recipe: fp32}]",
    project=f"dims: {{batch: 1}}\n{DYNAMIC_BATCH.project}",
)
"""A variant that Linux lacks the provider of comes first."""


@cache
def subject() -> Compiled:
    """Build the bundle and compile its module, and the program, once.

    Raises:
        EdgepackError: It cannot be built or compiled.
    """
    work = Path(mkdtemp(prefix="edgepack-sources-"))
    atexit.register(shutil.rmtree, work, ignore_errors=True)
    project = PASSED_OVER.write(work / "project", "ios")
    made = compiled(project, PASSED_OVER.name, work, mirrors=["CryptoKit"])
    text = (SWIFT / "Steps.swift").read_text("utf-8")
    text = text.replace("MODULE", made.module).replace("MODEL", made.name)
    text += later(made.name, (made.bundle.path / "README.md").read_text("utf-8"))
    (made.folder / "main.swift").write_text(text, encoding="utf-8")
    include = f"bundle/Sources/C{made.module}/include"
    argv = ["swiftc", "-swift-version", "5", "-I", ".", "-Xcc", f"-I{include}", "-I", include]
    argv += ["main.swift", f"{made.module}.o", "CryptoKit.o", "-o", "steps", *LINK]
    [crypto] = made.tools.root.glob("usr/lib/*/libcrypto.so.3")
    argv += [f"/{crypto.relative_to(made.tools.root)}"]
    made.tools.run(argv, folder=made.folder)
    return made


def later(name: str, readme: str) -> str:
    """Return the README's example of a version that comes later as a function."""
    [example] = re.findall(r"```swift\n(let store = .*?)```", readme, re.DOTALL)
    signature = f"func later(support: URL, download: URL) async throws -> {name}"
    return f"\n{signature} {{\n{example}return model\n}}\n"


def on_phone(scenario: Callable[[Phone], str]) -> Callable[[Path], str]:
    """Return a scenario as a proof's function."""

    def look(work: Path) -> str:
        made = subject()
        # The root file system sees one folder, the subject's.
        folder = made.folder / work.name
        folder.mkdir()

        def start(steps: Sequence[Step]) -> list[Any]:
            (folder / "steps.json").write_text(json.dumps(steps))
            caches = f"XDG_CACHE_HOME=/work/{work.name}/cache"
            argv = ["env", caches, "./steps", "bundle", work.name]
            found: list[Any] = json.loads(made.tools.run(argv, folder=made.folder).stdout)
            return found

        return scenario(Phone(folder, made.bundle.path, folder / "cache", start))

    return look


PROOFS = (
    Proof("resources, a folder and a function", on_phone(sources.sources_open)),
    Proof("a damaged folder says what is wrong", on_phone(sources.damage_is_named)),
    Proof("a later start proves nothing again", on_phone(sources.verdicts_are_kept)),
    Proof("versions that come later", on_phone(sources.versions_are_switched)),
    Proof("signatures by the app's key", on_phone(sources.signatures_decide)),
)
