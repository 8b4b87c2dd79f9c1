"""Where Swift takes a bundle's files from: the scenarios of ``sources.py`` on Linux.

A bundle's module is compiled as it lies in it, and so is a program that takes steps as an app does.
CryptoKit is a mirror of its API over OpenSSL.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.mobile import sources
from tests.mobile.proofs import Proof, require
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


def options_of_signers_count(here: Phone) -> str:
    """Open a signed bundle by lines of allowed signers; ssh-keygen says which of them count."""
    key = here.folder / "key"
    words = " ".join(sources.make_key(key).split()[:2])
    signed = here.copy("own")
    sources.sign(signed, key)
    options = [
        "",
        'namespaces="edgepack"',
        'namespaces="git"',
        'namespaces="git,edge*"',
        'NAMESPACES="file,?dgepack"',
        'namespaces="edgepack,!edge*"',
        'namespaces="!git"',
        'namespaces="edgepac"',
        'namespaces="edge.ack"',
        'namespaces=""',
        'valid-before="29990101",namespaces="git"',
        "cert-authority",
        'valid-after="20200101Z",namespaces="a b,edgepack"',
        'valid-before="202001"',
        'valid-after="2020010112Z"',
        'valid-after="202001011230"',
        'valid-before="soon"',
    ]
    lines = [f"me {each} {words}" for each in options]
    found = here.run(*({"do": "open", "folder": "own", "signer": line} for line in lines))
    for line, said in zip(lines, found, strict=True):
        wanted = _counts(line, signed)
        require(isinstance(said, dict) == wanted, f"{line}: {said}; ssh-keygen says {wanted}")
    refused = "may not sign bundles: its namespaces do not include 'edgepack'"
    require(refused in str(found[2]), f"{found[2]}")
    return f"{len(lines)} lines, as ssh-keygen reads them"


def _counts(line: str, bundle: Path) -> bool:
    """Tell whether ssh-keygen takes a bundle's signature by a line of allowed signers."""
    allowed = bundle.parent / "allowed"
    allowed.write_text(f"{line}\n")
    argv = ["ssh-keygen", "-Y", "verify", "-f", str(allowed), "-I", "me", "-n", "edgepack"]
    argv += ["-s", str(bundle / sources.SIGNATURE)]
    with (bundle / "manifest.json").open("rb") as manifest:
        done = subprocess.run(argv, stdin=manifest, capture_output=True, check=False, timeout=60)
    return done.returncode == 0


def links_count_as_their_files(here: Phone) -> str:
    """Open folders with links: what they lead to has to be whole, and to stay as it is."""
    outside = here.folder / "outside"
    outside.mkdir()
    linked = here.copy("linked")
    model = linked / here.model
    target = model.rename(outside / model.name)
    model.symlink_to(_relative(target, model))
    step: Step = {"do": "open", "folder": "linked"}
    whole, _ = here.run(step, step)
    require("variant" in whole, f"{whole}")
    sources.turn_bit(target)
    target.touch()
    [changed] = here.run(step)
    require("it was changed" in str(changed), f"{changed}")
    found = {}
    for name, (change, wanted) in LINKS.items():
        change(here.copy(name), outside)
        [found[name]] = here.run({"do": "open", "folder": name})
        require(wanted in str(found[name]), f"{name}: {found[name]}")
    return f"a linked model, {', '.join(LINKS)}"


def _relative(target: Path, link: Path) -> str:
    # The app sees another root.
    return os.path.relpath(target, link.parent)


def _link_more(bundle: Path, outside: Path) -> None:
    more = outside / "more"
    more.mkdir()
    (more / "more.onnx").write_bytes(b"")
    (bundle / "models" / "linked").symlink_to(_relative(more, bundle / "models" / "linked"))


def _link_folder(bundle: Path, outside: Path) -> None:
    models = (bundle / "models").rename(outside / "models")
    (bundle / "models").symlink_to(_relative(models, bundle / "models"))
    (models / "extra.onnx").write_bytes(b"")


def _name_outside(bundle: Path, outside: Path) -> None:
    model = outside / "other.onnx"
    shutil.copy(bundle / sources.read_manifest(bundle)["variants"][-1]["model"], model)
    path = f"models/{_relative(model, bundle / 'models' / 'x')}"
    sources.change_manifest(lambda m: m["variants"][-1].update(model=path))(bundle)


def _name_other_labels(bundle: Path, outside: Path) -> None:
    labels = outside / "labels.txt"
    shutil.copy(bundle / "files" / "labels.txt", labels)
    path = _relative(labels, bundle / "files" / "x")
    sources.change_manifest(lambda m: m["output_descriptions"]["scores"].update(labels=path))(
        bundle
    )


LINKS: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "one more folder": (_link_more, "manifest.json does not list "),
    "one more model in a linked folder": (_link_folder, "manifest.json does not list "),
    "a circle": (
        lambda b, _: (b / "files" / "circle").symlink_to("../files"),
        "files/circle is a link to a folder that is there already",
    ),
    "a named model outside": (_name_outside, "manifest.json does not list models/../"),
    "named labels outside": (_name_other_labels, "manifest.json does not list files/../"),
}
"""What is done to a folder, with a place outside, and what is said of it."""


PROOFS = (
    Proof("options of allowed signers", on_phone(options_of_signers_count)),
    Proof("links lead to files of the bundle", on_phone(links_count_as_their_files)),
    Proof("resources, a folder and a function", on_phone(sources.sources_open)),
    Proof("a damaged folder says what is wrong", on_phone(sources.damage_is_named)),
    Proof("a later start proves nothing again", on_phone(sources.verdicts_are_kept)),
    Proof("versions that come later", on_phone(sources.versions_are_switched)),
    Proof("signatures by the app's key", on_phone(sources.signatures_decide)),
)
