"""Where Kotlin takes a bundle's files from: the scenarios of ``sources.py`` on the virtual machine.

One bundle's sources are compiled as they lie in it, together with a program that takes steps.
"""

from __future__ import annotations

import atexit
import json
import re
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from edgepack.apps.names import App
from edgepack.builder.build import build
from edgepack.bundle.signing import sign

from tests.mobile import sources
from tests.mobile.jvm import ANDROID, COROUTINES, ORT, STDLIB, compile_kotlin, jars, run_main
from tests.mobile.kotlin_models import (
    HERE,
    NNAPI,
    PASSED_OVER,
    Subject,
    app_of_bundle,
    outside_weights,
    stand_ins,
    write_apk,
)
from tests.mobile.proofs import Proof, require
from tests.mobile.sources import Phone, Step, encrypt, make_key, turn_bit

SYSTEM = "phone/14"
SIGNATURES = 50
"""How many keys and signatures of Java's own are looked at."""


@cache
def subject() -> Subject:
    """Build the bundle and compile its sources, and the program, once.

    Raises:
        EdgepackError: It cannot be built or compiled.
    """
    work = Path(mkdtemp(prefix="edgepack-sources-"))
    atexit.register(shutil.rmtree, work, ignore_errors=True)
    project = PASSED_OVER.write(work / "project", NNAPI)
    result = build(project=project, out=work / "dist")
    result.require_all()
    bundle = result.bundles[0].bundle
    app = app_of_bundle(bundle, project)
    steps = (HERE / "kotlin" / "sources" / "Steps.kt").read_text("utf-8")
    steps = steps.replace("package edgepack.subject", f"package {app.kotlin_package}")
    (work / "Steps.kt").write_text(steps.replace("Subject", app.type_name), encoding="utf-8")
    (work / "Later.kt").write_text(later(app, (bundle.path / "README.md").read_text("utf-8")))
    libraries = jars(STDLIB, ORT, ANDROID)
    own = bundle.path / "src" / "main" / "kotlin"
    classes = compile_kotlin([own], work / "classes", classpath=[*libraries, *jars(COROUTINES)])
    path = (stand_ins(work), classes, *libraries)
    friend = [f"-Xfriend-paths={classes}"]
    programs = [work / "Steps.kt", work / "Later.kt"]
    program = compile_kotlin(programs, work / "program", classpath=path, options=friend)
    return Subject(app, bundle, (program, *path))


def later(app: App, readme: str) -> str:
    """Return the README's example of a version that comes later as a function."""
    [example] = re.findall(r"```kotlin\n(val store = .*?)```", readme, re.DOTALL)
    return f"""\
package {app.kotlin_package}

import android.content.Context
import java.io.File

internal fun later(context: Context, download: File): {app.type_name} {{
{example}return model
}}
"""


def phone(work: Path, system: str = SYSTEM) -> Phone:
    """Return a phone whose app has the bundle among its assets."""
    folder = work / "phone"
    folder.mkdir(exist_ok=True)
    write_apk(subject().bundle.path, subject().app, folder, (".onnx", ".ort"))

    def start(steps: Sequence[Step]) -> list[Any]:
        (folder / "steps.json").write_text(json.dumps(steps))
        main = f"{subject().app.kotlin_package}.StepsKt"
        options = [f"-Dfingerprint={system}"]
        done = run_main(main, folder, classpath=subject().path, options=options)
        found: list[Any] = json.loads(done.text.splitlines()[-1])
        return found

    return Phone(folder, subject().bundle.path, folder / "cache", start)


def on_phone(scenario: Callable[[Phone], str]) -> Callable[[Path], str]:
    """Return a scenario as a proof's function."""
    return lambda work: scenario(phone(work))


def weights_are_not_given(work: Path) -> str:
    """Refuse a function where weights are in a file, which onnxruntime reads from a folder."""
    here = phone(work)
    bundle = here.copy("download")
    outside_weights(bundle)
    encrypt(bundle, here.folder / "secret")
    steps: list[Step] = [{"do": "open", "folder": "download"}, {"do": "open", "function": "secret"}]
    folder, function = here.run(*steps)
    require("variant" in folder, f"{folder}")
    require("which a function cannot give" in str(function), f"{function}")
    return "a folder with weights opens, a function does not"


def system_is_seen(work: Path) -> str:
    """Open again after an update of the system: all is proven again."""
    encrypt(phone(work).copy("download"), work / "phone" / "secret")
    step: Step = {"do": "open", "function": "secret"}
    [first] = phone(work).run(step)
    [again] = phone(work).run(step)
    [updated] = phone(work, "phone/15").run(step)
    require(len(again["read"]) < len(first["read"]), f"{again}")
    require(updated["read"] == first["read"], f"{updated}")
    return f"{len(first['read'])} reads, then {len(again['read'])}, then {len(updated['read'])}"


def sources_are_told_apart(work: Path) -> str:
    """Open assets, then a function: the verdict about the one says nothing of the other."""
    here = phone(work)
    bundle = here.copy("download")
    turn_bit(next(bundle.glob("golden/**/*.bin")))
    encrypt(bundle, here.folder / "secret")
    assets, function = here.run({"do": "open"}, {"do": "open", "function": "secret"})
    require("variant" in assets, f"{assets}")
    require("it was changed" in str(function), f"{function}")
    return "a function's damage is seen behind whole assets"


def assets_are_signed(work: Path) -> str:
    """Open the assets of an app that was built from a signed bundle, and of one that was not."""
    here = phone(work)
    own, other = (make_key(work / f"key-{name}") for name in ("own", "other"))
    [unsigned] = here.run({"do": "open", "signer": own})
    bundle = here.copy("signed")
    sign(bundle, work / "key-own")
    write_apk(bundle, subject().app, here.folder, (".onnx", ".ort"))
    good, foreign = here.run({"do": "open", "signer": own}, {"do": "open", "signer": other})
    require("the bundle is not signed" in str(unsigned), f"{unsigned}")
    require("variant" in good and "another key" in str(foreign), f"{good}, {foreign}")
    return "1 signed, 1 not signed, 1 with another key"


def failed_install_moves_back(work: Path) -> str:
    """End an install where the new version cannot become current: the download is where it was."""
    here = phone(work)
    here.copy("download")
    (here.folder / "store" / "current.part").mkdir(parents=True)
    install: Step = {"do": "install", "store": "store", "download": "download"}
    [said] = here.run(install)
    require("download cannot be installed: " in str(said), f"{said}")
    require((here.folder / "download" / "manifest.json").exists(), "the download is gone")
    return "the folder is back"


def times_are_times(work: Path) -> str:
    """Refuse a line of allowed signers whose time is none: it must not count as no limit."""
    here = phone(work)
    key = make_key(here.folder / "key")
    sign(here.copy("own"), here.folder / "key")
    words = " ".join(key.split()[:2])
    wrong = ("soon", "2030010", "203001011", "20301301", "20300101z", "")
    steps: list[Step] = [
        {"do": "open", "folder": "own", "signer": f"me valid-before={time} {words}"}
        for time in wrong
    ]
    late: Step = {"do": "open", "folder": "own", "signer": f"me VALID-BEFORE=20200101Z {words}"}
    *found, expired = here.run(*steps, late)
    for time, said in zip(wrong, found, strict=True):
        require(said == f"IllegalArgumentException: '{time}' is no time", f"{time}: {said}")
    require("has expired" in str(expired), f"{expired}")
    return f"{len(wrong)} are none"


def java_agrees(work: Path) -> str:
    """Check signatures that Java made, and such that are changed."""
    [said] = phone(work).run({"do": "compare signatures", "count": SIGNATURES})
    require(said == f"{SIGNATURES} are equal", f"{said}")
    return str(said)


PROOFS = (
    Proof("assets, a folder and a function", on_phone(sources.sources_open)),
    Proof("a damaged folder says what is wrong", on_phone(sources.damage_is_named)),
    Proof("weights beside a model, from a function", weights_are_not_given),
    Proof("a later start proves nothing again", on_phone(sources.verdicts_are_kept)),
    Proof("another system proves all again", system_is_seen),
    Proof("versions that come later", on_phone(sources.versions_are_switched)),
    Proof("signatures by the app's key", on_phone(sources.signatures_decide)),
    Proof("signed assets", assets_are_signed),
    Proof("sources are told apart", sources_are_told_apart),
    Proof("an install that fails", failed_install_moves_back),
    Proof("times of a signer", times_are_times),
    Proof("Java's own signatures", java_agrees),
)
