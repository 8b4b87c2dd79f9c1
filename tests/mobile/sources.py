"""Where the code of a phone's bundle takes files from, what it refuses, and what later starts know.

The scenarios of both languages. A program of each does steps as an app does: it opens resources,
folders and what a function gives, and installs versions. Between its runs files are changed.

A step is ``{"do": "open" | "keep" | "use kept" | "install", ...}``, with ``folder``, ``function``
(whose bits are all turned) or ``store``; ``signer`` is a key, ``test`` asks for the self-test. What
comes of it is ``{"variant", "passedOver", "read"}``, with what the function was asked for, or a
text, which says what was wrong.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from edgepack.base.processes import run_program
from edgepack.bundle.manifest import MANIFEST_SIGNATURE as SIGNATURE
from edgepack.bundle.signing import sign

from tests.mobile.proofs import require
from tests.mobile.sealing import PALETTES, pack_input, seal

Step = dict[str, Any]
FOREIGN = "may not sign bundles: its namespaces do not include 'edgepack'"
"""Said of a signer whose namespaces are others."""
WHOLE = "cpu-fp32"
"""The variant that works; one that wants another provider comes before it."""


@dataclass(frozen=True)
class Phone:
    """An app with a bundle named ``passed-over`` in its package."""

    folder: Path
    """What the app has, and from where its steps take files."""
    bundle: Path
    cache: Path
    """The app's, for verdicts."""
    start: Callable[[Sequence[Step]], list[Any]]
    """Starts the app, which takes steps, and returns what came of each."""

    def run(self, *steps: Step) -> list[Any]:
        """Start the app for some steps."""
        return self.start(steps)

    def copy(self, name: str) -> Path:
        """Return a copy of the bundle in a folder of this name."""
        shutil.copytree(self.bundle, self.folder / name)
        return self.folder / name

    @property
    def model(self) -> str:
        """The path of the model in the bundle."""
        return str(read_manifest(self.bundle)["variants"][-1]["model"])


def sources_open(here: Phone) -> str:
    """Open the same bundle from the package, a folder, and a function that decrypts."""
    download = here.copy("download")
    pack_input(download)
    encrypt(download, here.folder / "secret")
    steps: list[Step] = [{}, {"folder": "download"}, {"function": "secret"}]
    found = here.run(*({"do": "open", "test": True, **step} for step in steps))
    for said in found:
        require("test" in said and _variant(said) == WHOLE and said["test"], f"{said}")
        require(len(said["passedOver"]) == 1, f"{said}")
    left = [file for file in here.cache.rglob("*") if file.is_file()]
    require(bool(left), "no verdict is kept")
    require(all(file.name.startswith("verdict-") for file in left), f"in the cache: {left}")
    return f"{len(found)} sources"


def damage_is_named(here: Phone) -> str:
    """Damage a folder in many ways; each is refused, and what is wrong is named."""
    for number, name in enumerate(DAMAGES):
        DAMAGES[name][0](here.copy(f"download{number}"))
    encrypt(here.copy("plain"), here.folder / "secret")
    (here.folder / "secret" / here.model).write_bytes(b"")
    # What a function has beside the files that are listed cannot be seen.
    unlisted = here.copy("unlisted")
    change_manifest(partial(_leave_out, "golden/"))(unlisted)
    encrypt(unlisted, here.folder / "more")
    steps: list[Step] = [{"do": "open", "folder": f"download{n}"} for n in range(len(DAMAGES))]
    steps += [{"do": "open", "function": name} for name in ("secret", "more")]
    *found, locked, more = here.run(*steps)
    require("manifest.json does not list golden/" in str(more), f"{more}")
    for (name, (_, wanted)), said in zip(DAMAGES.items(), found, strict=True):
        held = isinstance(said, str) and wanted.replace("MODEL", here.model) in said
        require(held, f"{name}: {said!r}")
    wanted = f"the bundle is not whole: {here.model} from the app's function: "
    require(wanted in str(locked) and str(locked).endswith("no key"), f"{locked}")
    return ", ".join([*DAMAGES, "a function without a key", "one with files that are not listed"])


def verdicts_are_kept(here: Phone) -> str:
    """Open again: nothing is proven again, until something is another."""
    bundle = here.copy("download")
    encrypt(bundle, here.folder / "secret")
    step: Step = {"do": "open", "function": "secret"}
    first, second = here.run(step, step)
    require(any(path.startswith("golden/") for path in first["read"]), f"{first}")
    again = {path for path in second["read"] if not path.startswith("files/")}
    require(again == {"manifest.json", here.model}, f"{second}")
    require(first["passedOver"] == second["passedOver"] != [], f"{second}")
    for what, change in BROKEN.items():
        for kept in here.cache.rglob("verdict-*.json"):
            kept.write_text(change(kept.read_text()))
        [found] = here.run(step)
        held = _variant(found) == WHOLE and set(found["read"]) == set(first["read"])
        require(held, f"{what}: {found}")
    [one] = here.run({**step, "variant": WHOLE})
    require(one["passedOver"] == [], f"a variant that is asked for: {one}")
    return _changes_are_seen(here, bundle)


def _changes_are_seen(here: Phone, bundle: Path) -> str:
    """Change files of a folder that was opened: the list of its files has to tell."""
    step: Step = {"do": "open", "folder": "download"}
    here.run(step)
    # Neither size nor time tell, and nothing is read again: this is what a kept verdict means.
    golden = next(bundle.glob("golden/**/*.bin"))
    turn_bit(golden)
    [same] = here.run(step)
    require("variant" in same, f"{same}")
    golden.touch()
    [touched] = here.run(step)
    require("it was changed" in str(touched), f"{touched}")
    turn_bit(golden)
    [whole] = here.run(step)
    require("variant" in whole, f"{whole}")
    (bundle / "models" / "more.onnx").write_bytes(b"")
    [more] = here.run(step)
    require("does not list" in str(more), f"{more}")
    return f"verdicts: {', '.join(BROKEN)}; 4 changes"


def _other_key(text: str) -> str:
    kept = json.loads(text)
    return json.dumps({**kept, "key": kept["key"].replace("\n", "\nother ", 1)})


BROKEN: dict[str, Callable[[str], str]] = {
    "unreadable": lambda text: text[:-1],
    "another key": _other_key,
    "no such variant": lambda text: text.replace(f'"{WHOLE}"', '"none"'),
    "one that does not load": lambda text: text.replace(
        f'"{WHOLE}"', json.dumps(_passed_over(text))
    ),
}
"""What makes a kept verdict worth nothing."""


def _passed_over(text: str) -> str:
    kept = json.loads(text)
    return str((kept.get("passed_over") or kept["passedOver"])[0][0])


def versions_are_switched(here: Phone) -> str:
    """Install versions: the old one stays until the new one has passed."""
    second_version(here.copy("download"))
    bad = here.copy("bad")
    second_version(bad)
    turn_golden(bad)
    half = here.copy("half")
    cut(half / here.model)
    current: Step = {"do": "open", "store": "store"}
    install: Step = {"do": "install", "store": "store"}
    first, partial, still, done, second, refused, after = here.run(
        current,
        {**install, "download": "half"},
        current,
        {**install, "download": "download"},
        current,
        {**install, "download": "bad"},
        current,
    )
    require(_variant(first) == _variant(still) == WHOLE, f"{first}, {still}")
    require(f"{here.model} has " in partial and (half / here.model).exists(), f"{partial}")
    require(done == "installed" and _variant(second) == "second", f"{done}, {second}")
    require("near the golden one" in refused and bad.exists(), f"{refused}")
    require(_variant(after) == "second", f"{after}")
    here.copy("third")
    keep, use = {"do": "keep", "store": "store"}, {"do": "use kept"}
    _, done, kept, third = here.run(keep, {**install, "download": "third"}, use, current)
    require(done == "installed" and _variant(third) == WHOLE, f"{done}, {third}")
    require(kept == "it answers", f"{kept}")
    versions = here.folder / "store" / "versions"
    require(len(list(versions.iterdir())) == 1, f"{list(versions.iterdir())}")
    return _interrupted(here, versions)


def _interrupted(here: Phone, versions: Path) -> str:
    """End an install before the new version is current: the old one is, and the next cleans up."""
    shutil.copytree(next(versions.iterdir()), versions / "left")
    second_version(here.copy("fourth"))
    current: Step = {"do": "open", "store": "store"}
    install: Step = {"do": "install", "store": "store", "download": "fourth"}
    before, _, after = here.run(current, install, current)
    require(_variant(before) == WHOLE and _variant(after) == "second", f"{before}, {after}")
    [left] = versions.iterdir()
    shutil.rmtree(left)
    [gone] = here.run(current)
    require("the bundle is not whole: " in gone and "manifest.json" in gone, f"{gone}")
    return "2 installed after the first, 2 refused, 1 interrupted"


def signatures_decide(here: Phone) -> str:
    """Open bundles that ssh-keygen signed: with the app's key, another key, one that expired."""
    keys = {name: make_key(here.folder / f"key-{name}") for name in ("own", "other")}
    for name in keys:
        sign(here.copy(name), here.folder / f"key-{name}")
    here.copy("unsigned")
    swapped = here.copy("swapped")
    second_version(swapped)
    shutil.copy(here.folder / "own" / SIGNATURE, swapped)
    argv = ["ssh-keygen", "-Y", "sign", "-f", str(here.folder / "key-own"), "-n", "git"]
    run_program([*argv, str(here.copy("git") / "manifest.json")], timeout_s=60)
    first, *lines, last = (here.folder / "own" / SIGNATURE).read_text("utf-8").splitlines()
    half = base64.b64encode(base64.b64decode("".join(lines))[:-9]).decode()
    (here.copy("half") / SIGNATURE).write_text("\n".join([first, half, last]))
    (here.copy("empty") / SIGNATURE).write_text("")
    words = " ".join(keys["own"].split()[:2])
    soon = datetime.now(tz=UTC) + timedelta(hours=1)
    cases = [
        ("own", keys["own"], ""),
        ("own", f'me namespaces="edgepack",valid-before=29990101Z {words}', ""),
        (
            "own",
            f'me valid-before="20200101" {words}',
            "the key that signed the bundle has expired",
        ),
        ("own", f'me valid-before="{soon:%Y%m%d%H%M%S}Z" {words}', ""),
        ("own", f"me valid-after={soon:%Y%m%d%H%M}Z {words}", "is valid from "),
        ("own", f"me valid-after=29990101 {words}", "is valid from "),
        ("own", f'me namespaces="git,edge*" {words}', ""),
        ("own", f'me namespaces="git,file" {words}', FOREIGN),
        ("own", f'me NAMESPACES="edgepac?,!edgepack" {words}', FOREIGN),
        ("own", f'me valid-before="29990101",namespaces="edgepack2" {words}', FOREIGN),
        ("own", f'me namespaces="" {words}', FOREIGN),
        ("own", f'me Cert-Authority,namespaces="edgepack" {words}', "it signs certificates"),
        ("other", keys["own"], "signed with another key than the app's: SHA256:"),
        ("unsigned", keys["own"], "the bundle is not signed"),
        ("swapped", keys["own"], "it does not fit manifest.json"),
        ("git", keys["own"], "it is for 'git', not for 'edgepack'"),
        ("half", keys["own"], f"{SIGNATURE}: it is cut off"),
        ("empty", keys["own"], f"{SIGNATURE}: it is no SSH signature"),
        ("own", "ssh-rsa AAAA me", "'ssh-rsa AAAA me' has no ssh-ed25519 key"),
    ]
    found = here.run(*({"do": "open", "folder": f, "signer": key} for f, key, _ in cases))
    for (folder, key, wanted), said in zip(cases, found, strict=True):
        held = wanted in str(said) if wanted else "variant" in said
        require(held, f"{folder} with {key}: {said}")
    install: Step = {"do": "install", "store": "store", "signer": keys["own"]}
    other, own, opened = here.run(
        {**install, "download": "other"}, {**install, "download": "own"}, {**install, "do": "open"}
    )
    require("another key" in other and own == "installed", f"{other}, {own}")
    require("variant" in opened, f"{opened}")
    return f"{len(cases)} signatures"


def _variant(said: Any) -> str:
    """Return the variant that was opened, or what was wrong."""
    return str(said["variant"]) if isinstance(said, dict) else str(said)


def make_key(path: Path) -> str:
    """Make a key and return its public half as a line."""
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    run_program(argv, timeout_s=60)
    return path.with_name(f"{path.name}.pub").read_text("utf-8").strip()


def encrypt(bundle: Path, to: Path) -> None:
    """Write every file of a bundle with every bit turned."""
    for file in bundle.rglob("*"):
        if file.is_file():
            target = to / file.relative_to(bundle)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(bytes(255 - byte for byte in file.read_bytes()))


def read_manifest(bundle: Path) -> dict[str, Any]:
    """Return a bundle's manifest as JSON."""
    manifest: dict[str, Any] = json.loads((bundle / "manifest.json").read_text("utf-8"))
    return manifest


def change_manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Return what changes a bundle's manifest."""

    def apply(bundle: Path) -> None:
        manifest = read_manifest(bundle)
        change(manifest)
        (bundle / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")

    return apply


def turn_bit(path: Path) -> None:
    """Change one bit in the middle of a file, and leave its size and time as they are."""
    times, data = path.stat(), bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def cut(path: Path) -> None:
    """Leave out a file's last byte."""
    path.write_bytes(path.read_bytes()[:-1])


def second_version(bundle: Path) -> None:
    """Make another version of a bundle: its variant has another name."""

    def change(manifest: dict[str, Any]) -> None:
        manifest["version"] = "2.0.0"
        manifest["variants"] = manifest["variants"][-1:]
        [variant] = manifest["variants"]
        for golden in manifest["goldens"]:
            golden["outputs"] = {"second": golden["outputs"][variant["id"]]}
        variant["id"] = "second"

    change_manifest(change)(bundle)


def turn_golden(bundle: Path) -> None:
    """Give a whole bundle golden outputs that its model does not give."""
    [tensors] = read_manifest(bundle)["goldens"][0]["outputs"].values()
    path = bundle / tensors[0]["path"]
    path.write_bytes(bytes(byte ^ 0x80 for byte in path.read_bytes()))
    seal(bundle)


def _leave_out_label(bundle: Path) -> None:
    (bundle / "files" / "labels.txt").write_text("ant\nbee\ncat\n")
    seal(bundle)


def _model(bundle: Path) -> Path:
    return bundle / str(read_manifest(bundle)["variants"][-1]["model"])


def _halve_manifest(bundle: Path) -> None:
    data = (bundle / "manifest.json").read_bytes()
    (bundle / "manifest.json").write_bytes(data[: len(data) // 2])


def _lead_out(manifest: dict[str, Any]) -> None:
    manifest["files"][0]["path"] = "models/../../other"


def _leave_out(begin: str, manifest: dict[str, Any]) -> None:
    manifest["files"] = [each for each in manifest["files"] if not each["path"].startswith(begin)]


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda b: (b / "manifest.json").unlink(), "the bundle is not whole: "),
    "half a manifest": (_halve_manifest, "manifest.json: "),
    "no model": (lambda b: _model(b).unlink(), "MODEL: "),
    "half a model": (lambda b: cut(_model(b)), "MODEL has "),
    "another model": (lambda b: turn_bit(_model(b)), "MODEL is not the file that "),
    "one more model": (
        lambda b: (b / "models" / "more.onnx").write_bytes(b""),
        "does not list ",
    ),
    "another golden": (lambda b: turn_bit(next(b.glob("golden/**/*.bin"))), "it was changed"),
    "other labels": (lambda b: turn_bit(b / "files" / "labels.txt"), "labels.txt is not the file"),
    "fewer labels": (_leave_out_label, "files/labels.txt has 3 labels, "),
    "a path that leads out": (change_manifest(_lead_out), "is no path in a bundle"),
    "labels that are not listed": (
        change_manifest(partial(_leave_out, "files/labels.txt")),
        "manifest.json does not list files/labels.txt, which it names",
    ),
    "another name": (
        change_manifest(lambda m: m.update(name="other")),
        "does not fit this code: its name is other, the code's is passed-over",
    ),
    "another input": (
        change_manifest(lambda m: m["inputs"][0]["shape"].append(7)),
        "does not fit this code: its inputs is ",
    ),
    "another output": (
        change_manifest(lambda m: m["outputs"][0].update(dtype="int64")),
        "does not fit this code: its outputs is ",
    ),
    "another answer": (
        change_manifest(lambda m: m["output_descriptions"].update(scores={"kind": "regression"})),
        "its description of 'scores' is regression, the code's is classification",
    ),
    "no picture": (
        change_manifest(lambda m: m["input_descriptions"]["image"].update(image=None)),
        "its description of 'image' is ",
    ),
    "another schema": (change_manifest(lambda m: m.update(schema_version=2)), "schema version 2"),
    **{
        name: (partial(pack_input, change=change), said)
        for name, (change, said) in PALETTES.items()
    },
}
"""What is done to a folder, and what is said of it."""
