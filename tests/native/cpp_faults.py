"""Bundles, libraries and inputs that are wrong: each is one error with its code, and no crash."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from edgepack.base.processes import run_program
from edgepack.ondevice.runtime import edgepack_loader as loader

from tests.chaos.disks import can_mount
from tests.mobile.proofs import NotHeldError, Proof, require
from tests.mobile.refusals import TOKENIZERS
from tests.mobile.signatures import BUCKETS, DETECTOR, DYNAMIC_BATCH, TEXT
from tests.mobile.vectors import tokenizer
from tests.native.programs import (
    KEPT,
    Opened,
    build_bundle,
    compile_program,
    describe_in_python,
    find_library,
    find_refusal,
    read_opened,
    read_tensors,
    run_described,
    write_tensors,
)
from tests.support.reports.tiny_bundle import change_manifest

USAGE, NOT_FOUND, BROKEN, NEWER, NO_RUNTIME, REFUSED, BAD_INPUT, NO_MEMORY = range(1, 9)
OLDEST = "1.16.3"
"""The release with the least API version that the library takes."""

Damage = Callable[[Path], None]


def edit(change: Callable[[dict[str, Any]], object]) -> Damage:
    """Return what changes a bundle's manifest."""
    return lambda bundle: change_manifest(bundle, lambda manifest: _ignore(change(manifest)))


def _ignore(_found: object) -> None:
    """Nothing: changes are expressions."""


def _golden(bundle: Path, kind: str) -> Path:
    manifest = json.loads((bundle / "manifest.json").read_text())
    sample = manifest["goldens"][0]
    entries = sample["inputs"] if kind == "inputs" else next(iter(sample["outputs"].values()))
    return bundle / entries[0]["path"]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def _remove(path: Path) -> None:
    path.unlink()


def _write(name: str, data: bytes) -> Damage:
    return lambda bundle: _ignore((bundle / name).write_bytes(data))


def _fold(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _link(path: Path, to: str) -> None:
    path.unlink()
    path.symlink_to(to)


def _first(**change: object) -> Damage:
    """Return what changes the first variant."""
    return edit(lambda manifest: manifest["variants"][0].update(change))


def _input(**change: object) -> Damage:
    """Return what changes the first input."""
    return edit(lambda manifest: manifest["inputs"][0].update(change))


def _golden_input(**change: object) -> Damage:
    """Return what changes the first golden input."""
    return edit(lambda manifest: manifest["goldens"][0]["inputs"][0].update(change))


def _golden_outputs(**change: object) -> Damage:
    """Return what changes the first golden output of each variant."""
    return edit(lambda m: [each[0].update(change) for each in m["goldens"][0]["outputs"].values()])


def _session(**change: object) -> Damage:
    """Return what changes the first variant's session."""
    return edit(lambda manifest: manifest["variants"][0]["session"].update(change))


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


NO_QUANTITIES = {"size": 1, "runs": [], "extra_db": []}
MANY_CHANNELS = {"size": 1, "runs": [[2**50, 0]], "extra_db": [0.0]}
BROKEN_BUNDLES: dict[str, tuple[int, Damage]] = {
    "no manifest": (NOT_FOUND, lambda b: _remove(b / "manifest.json")),
    "manifest is a folder": (NOT_FOUND, lambda b: _fold(b / "manifest.json")),
    "manifest is a pipe": (NOT_FOUND, lambda b: _pipe(b / "manifest.json")),
    "manifest of many values": (BROKEN, edit(lambda m: m.update(more=[0] * 2**21))),
    "manifest is empty": (BROKEN, _write("manifest.json", b"")),
    "manifest is cut": (BROKEN, lambda b: _cut(b / "manifest.json")),
    "manifest is no UTF-8": (BROKEN, _write("manifest.json", b'{"name": "\xff"}')),
    "manifest is deep": (BROKEN, _write("manifest.json", b"[" * 100_000)),
    "manifest is a list": (BROKEN, _write("manifest.json", b"[1]")),
    "newer schema": (NEWER, edit(lambda m: m.update(schema_version=2))),
    "no schema": (BROKEN, edit(lambda m: m.pop("schema_version"))),
    "several models": (USAGE, edit(lambda m: m.update(parts={"a": {}, "b": {}}))),
    "no variants": (BROKEN, edit(lambda m: m.update(variants=[]))),
    "no goldens": (BROKEN, edit(lambda m: m.update(goldens=[]))),
    "variant without providers": (BROKEN, _first(providers=[])),
    "placement is a word": (BROKEN, _first(placement="most")),
    "a limit is a text": (BROKEN, _first(min_sqnr_db="20")),
    "a type is unknown": (BROKEN, _input(dtype="float8")),
    "a size is below 0": (BROKEN, _input(shape=[-1, 3, 8, 8])),
    "a size is broken": (BROKEN, _input(shape=[1.5, 3, 8, 8])),
    "an input is there twice": (BROKEN, edit(lambda m: m["inputs"].append(m["inputs"][0]))),
    "an output is there twice": (BROKEN, edit(lambda m: m["outputs"].append(m["outputs"][0]))),
    "threads beyond 32 bits": (BROKEN, _session(intra_op_num_threads=2**32 + 1)),
    "threads of nodes beyond all": (BROKEN, _session(inter_op_num_threads=200_000)),
    "a stride is 0": (BROKEN, _golden_input(stride=0)),
    "a file leads out": (BROKEN, _golden_input(path="../x")),
    "golden input is missing": (BROKEN, lambda b: _remove(_golden(b, "inputs"))),
    "golden input is a pipe": (BROKEN, lambda b: _pipe(_golden(b, "inputs"))),
    "golden input is cut": (BROKEN, lambda b: _cut(_golden(b, "inputs"))),
    "golden of another size": (BROKEN, _golden_input(shape=[2**40, 3, 8, 8])),
    "golden beyond memory": (BROKEN, _golden_input(shape=[2**52] * 4)),
    "palette of nothing": (BROKEN, _golden_input(palette={"step": 1, "sizes": []})),
    "palette beyond the file": (BROKEN, _golden_input(palette={"step": 1, "sizes": [256] * 999})),
    "channels beyond memory": (BROKEN, _golden_outputs(quantities=MANY_CHANNELS)),
    "manifest without an end": (NOT_FOUND, lambda b: _link(b / "manifest.json", "/dev/zero")),
    "golden of nothing but size": (BROKEN, lambda b: os.truncate(_golden(b, "inputs"), 2**40)),
    "picture beyond memory": (
        BROKEN,
        edit(lambda m: m["input_descriptions"]["image"]["image"]["resize"].update(crop=2**40)),
    ),
    "quantities of nothing": (BROKEN, _golden_outputs(quantities=NO_QUANTITIES)),
    "unknown variant": (USAGE, lambda _bundle: None),
}


def list_broken(work: Path) -> Iterator[tuple[str, Path]]:
    """Return bundles, each broken in one way, and some whose variants are refused."""
    for name, (_code, damage) in BROKEN_BUNDLES.items():
        yield name, break_bundle(work / name.replace(" ", "-"), damage)
    for name, damage in REFUSED_BUNDLES.items():
        yield name, break_bundle(work / name.replace(" ", "-"), damage)


def break_bundle(folder: Path, damage: Damage) -> Path:
    """Copy a bundle and break it."""
    shutil.copytree(build_bundle(DYNAMIC_BATCH), folder)
    damage(folder)
    return folder


def refuse_broken(work: Path) -> str:
    """Each has the code that it should have, and the text names the place."""
    for name, (code, damage) in BROKEN_BUNDLES.items():
        bundle = break_bundle(work / name.replace(" ", "-"), damage)
        words = ["--variant", "none"] if name == "unknown variant" else []
        found, text = find_refusal(bundle, *words)
        require(found == code, f"{name}: code {found}, not {code}: {text}")
        require(bool(words) or str(bundle) in text or "golden" in text, f"{name}: {text}")
    return f"{len(BROKEN_BUNDLES)} bundles"


def _model(bundle: Path) -> Path:
    manifest = json.loads((bundle / "manifest.json").read_text())
    return bundle / str(manifest["variants"][0]["model"])


REFUSED_BUNDLES: dict[str, Damage] = {
    "model is cut": lambda b: _cut(_model(b)),
    "model is empty": lambda b: _ignore(_model(b).write_bytes(b"")),
    "model is text": lambda b: _ignore(_model(b).write_bytes(b"not a model at all")),
    "model is missing": lambda b: _remove(_model(b)),
    "another output": edit(lambda m: m["outputs"][0].update(name="scores2")),
}


def refuse_variants(work: Path) -> str:
    """A variant whose model is damaged is passed over in Python's words; the next one runs."""
    said = []
    for name, damage in REFUSED_BUNDLES.items():
        bundle = break_bundle(work / name.replace(" ", "-"), damage)
        done = run_described(bundle)
        if name == "another output":
            found, text = find_refusal(bundle)
            require(found == REFUSED and text.count("\n") == 2, f"{name}: {found} {text}")
            continue
        require(done.exit_code == 0, f"{name}: {done.text}{done.last_lines}")
        opened, expected = read_opened(json.loads(done.text)), describe_in_python(bundle)
        opened.require_equal(expected)
        said.append(opened.passed_over[0][1])
    return "; ".join(said)[:400]


def refuse_tokenizers(work: Path) -> str:
    """A bundle does not open whose tokenizer is missing, damaged or of another kind."""
    texts = [b"", b"{", b"[]", b'{"model": "\xff"}', b"{}", b"[" * 100000, None]
    texts += [json.dumps(tokenizer(**changes)).encode() for changes in TOKENIZERS]
    for number, text in enumerate(texts):
        bundle = work / str(number)
        shutil.copytree(build_bundle(TEXT), bundle)
        file = bundle / "files" / "tokenizer.json"
        file.unlink()
        if text is not None:
            file.write_bytes(text)
        code, said = find_refusal(bundle)
        require(code == BROKEN and str(file) in said, f"{text!r}: {code} {said}")
    return f"{len(texts)} tokenizers"


def refuse_all(work: Path) -> str:
    """Where no variant works, the error has every reason, as Python's of the same path."""
    bundle = break_bundle(
        work / "b", edit(lambda m: [v.update(min_sqnr_db=300.0) for v in m["variants"]])
    )
    path = f"{bundle}//"
    code, text = find_refusal(path)
    require(code == REFUSED, f"code {code}: {text}")
    try:
        loader.load(path)
    except loader.LoadError as error:
        require(str(error) == text, f"{text}\nnot\n{error}")
    return text.splitlines()[-1].strip()


def refuse_runtimes(work: Path) -> str:
    """No onnxruntime, none of that name, too old a one, and a second copy: one error each."""
    bundle = build_bundle(DYNAMIC_BATCH)
    old = write_old_runtime(work / "old")
    empty = work / "empty.so"
    compile_library(empty, "int nothing;")
    text = work / "text.so"
    text.write_text("no library")
    program = str(compile_program("describe.cc"))
    for runtime in ("/nowhere/libonnxruntime.so", str(old), str(empty), str(text), "-"):
        done = run_program([program, runtime, str(bundle)], timeout_s=60)
        said = json.loads(done.text)
        require(said["code"] == NO_RUNTIME, f"{runtime}: {done.text}")
        require(runtime != str(old) or "1.15.1 is too old" in said["text"], said["text"])
    copy = work / "libonnxruntime.so.1"
    shutil.copy(find_library(), copy)
    code, said = find_refusal(bundle, "--again", copy)
    require(code == NO_RUNTIME and str(copy) in said and str(find_library()) in said, said)
    code, said = find_refusal(bundle, "--again", "/nowhere/libonnxruntime.so")
    require(code == NO_RUNTIME and said == "there is no /nowhere/libonnxruntime.so", said)
    library = find_library()
    argv = [program, f"./{library.name}", str(bundle), "--again", str(library)]
    done = run_program(argv, timeout_s=60, cwd=library.parent)
    require(done.exit_code == 0, f"the same copy is refused: {done.text}")
    vendored = work / "vendored"
    shutil.copytree(bundle, vendored)
    (vendored / "cpp" / "lib").mkdir()
    shutil.copy(find_library(), vendored / "cpp" / "lib" / "libonnxruntime.so.1")
    done = run_program([program, "-", str(vendored)], timeout_s=60)
    require(done.exit_code == 0, f"the bundle's own is not found: {done.text}")
    return "5 refused, a second copy, one that is not there, the bundle's own"


def write_old_runtime(folder: Path) -> Path:
    """Compile a library that says it is an onnxruntime before the least one."""
    folder.mkdir()
    compile_library(
        folder / "libonnxruntime.so",
        "struct Base { const void *(*get)(unsigned); const char *(*version)(void); };\n"
        "static const void *get(unsigned v) { return v > 15 ? 0 : &get; }\n"
        'static const char *version(void) { return "1.15.1"; }\n'
        "static struct Base base = {get, version};\n"
        "struct Base *OrtGetApiBase(void) { return &base; }",
    )
    return folder / "libonnxruntime.so"


def compile_library(path: Path, text: str) -> None:
    """Compile a shared library of C."""
    argv = ["cc", "-x", "c", "-", "-shared", "-fPIC", "-o", str(path)]
    done = run_program(argv, timeout_s=60, input_bytes=text.encode())
    require(done.exit_code == 0, done.stderr.decode("utf-8", "replace"))


def fetch_oldest() -> Path:
    """Return the library of the oldest release; its Python wheel has none, its npm package has."""
    kept = KEPT / f"onnxruntime-node-{OLDEST}"
    library = kept / "package" / "bin" / "napi-v3" / "linux" / "x64" / f"libonnxruntime.so.{OLDEST}"
    if not library.is_file():
        kept.mkdir(parents=True, exist_ok=True)
        npm = run_program(
            ["npm", "pack", "--silent", f"onnxruntime-node@{OLDEST}"], timeout_s=600, cwd=kept
        )
        require(npm.exit_code == 0, npm.stderr.decode("utf-8", "replace")[-500:])
        with tarfile.open(next(kept.glob("*.tgz"))) as package:
            package.extractall(kept, filter="data")
    return library


def open_oldest(_work: Path) -> str:
    """The oldest onnxruntime that is taken runs the bundle: its golden outputs are near."""
    library = fetch_oldest()
    argv = [str(compile_program("describe.cc")), str(library), str(build_bundle(DYNAMIC_BATCH))]
    done = run_program(argv, timeout_s=120)
    require(done.exit_code == 0, f"{done.text}{done.last_lines}")
    said = json.loads(done.text)
    require(said["runtime"] == OLDEST, done.text)
    return f"{said['variant']}, {said['golden_sqnr_db']:.0f} dB on {OLDEST}"


def refuse_inputs(work: Path) -> str:
    """Inputs of another type, shape or size are refused in Python's words."""
    model = loader.load(build_bundle(BUCKETS))
    names = [spec.name for spec in model.inputs]
    ids = np.ones((1, 4), np.int64)
    wrong: list[dict[str, np.ndarray]] = [
        {"input_ids": ids.astype(np.int32)},
        {"input_ids": ids[0]},
        {"input_ids": np.ones((2, 4), np.int64)},
        {"attention_mask": ids},
        {"input_ids": np.ones((1, 9), np.int64)},
        {"input_ids": ids, "attention_mask": np.ones((1, 3), np.int64)},
    ]
    for number, feed in enumerate(wrong):
        folder = write_tensors(work / f"in-{number}", names, feed)
        code, text = find_refusal(build_bundle(BUCKETS), folder, work)
        require(code == BAD_INPUT, f"{number}: code {code}: {text}")
        try:
            model(feed)
        except ValueError as error:
            require(str(error).split(": convert it")[0] == text, f"{text}\nnot\n{error}")
        else:
            raise NotHeldError(f"Python takes {number}")
    return f"{len(wrong)} feeds"


def survive_vanishing(work: Path) -> str:
    """A model runs on after its bundle is gone, and opens from files that nobody may write."""
    bundle, out = work / "bundle", work / "out"
    shutil.copytree(build_bundle(DETECTOR), bundle)
    for path in [bundle, *bundle.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    out.mkdir()
    model = loader.load(build_bundle(DETECTOR))
    spec = model.inputs[0]
    shape = [1 if isinstance(dim, str) else dim for dim in spec.shape]
    feed = {spec.name: np.full(shape, 0.25, spec.dtype)}
    folder = write_tensors(work / "in", [spec.name], feed)
    argv = [compile_program("describe.cc"), find_library(), bundle, "--wait", folder, out]
    with subprocess.Popen(
        list(map(str, argv)), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        opened = child.stdout.readline()
        for path in [bundle, *bundle.rglob("*")]:
            if path.is_dir():
                path.chmod(0o755)
        shutil.rmtree(bundle)
        child.communicate(timeout=60)
    require(child.returncode == 0 and b"variant" in opened, f"it ended with {child.returncode}")
    found = read_tensors(out, [s.name for s in model.outputs])
    for name, array in model(feed).items():
        require(found[name].tobytes() == array.tobytes(), f"{name} differs")
    return "the same bits"


def survive_vanishing_early(work: Path) -> str:
    """Where the folder goes while it opens, it runs, or an error says which file is not there."""
    program, ends = compile_program("describe.cc"), []
    run_described(build_bundle(DYNAMIC_BATCH))
    started = time.monotonic()
    run_described(build_bundle(DYNAMIC_BATCH))
    whole_s = time.monotonic() - started
    for number in range(30):
        bundle = work / str(number)
        shutil.copytree(build_bundle(DYNAMIC_BATCH), bundle)
        argv = [str(program), str(find_library()), str(bundle)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            time.sleep(number / 15 * whole_s)
            bundle.rename(work / f"{number}-gone")
            said = json.loads(child.communicate(timeout=60)[0])
        code = said.get("code", 0)
        require(child.returncode == (3 if code else 0), f"it ended with {child.returncode}")
        require(code in {0, NOT_FOUND, BROKEN, REFUSED}, str(said))
        ends.append(code)
    require(len(set(ends)) > 1, f"it went always at the same time: {ends}")
    return ", ".join(f"{ends.count(code)} ended with {code}" for code in sorted(set(ends)))


READ_ONLY = """
mount -t tmpfs -o ro tmpfs "$1" && mount --bind "$2" "$2" && mount -o remount,bind,ro "$2" &&
shift 2 && exec "$@"
"""
IN_PYTHON = """
import json, sys
from edgepack.ondevice.runtime import edgepack_loader
model = edgepack_loader.load(sys.argv[1])
print(json.dumps([model.variant, list(map(list, model.passed_over)), model.golden_sqnr_db]))
"""


def survive_read_only(work: Path) -> str:
    """On file systems that are read-only, a variant without a cache runs; others say why not."""
    config = {"ep.context_file_path": "{cache}/model"}
    bundle, cache = work / "bundle", work / "cache"
    shutil.copytree(build_bundle(DYNAMIC_BATCH), bundle)
    change_manifest(bundle, lambda m: m["variants"][0]["session"].update(config=config))
    cache.mkdir()
    if not can_mount():
        return "not looked at: this user mounts nothing"
    entered = ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh", str(cache), str(bundle)]
    opened = []
    for argv in (
        [str(compile_program("describe.cc")), str(find_library()), str(bundle)],
        [sys.executable, "-c", IN_PYTHON, str(bundle)],
    ):
        environment = {**os.environ, "EDGEPACK_CACHE": str(cache)}
        done = run_program([*entered, *argv], timeout_s=120, environment=environment)
        require(done.exit_code == 0, f"{done.text}{done.last_lines}")
        said = json.loads(done.text)
        opened.append(read_opened(said) if isinstance(said, dict) else Opened(*said))
    opened[0].require_equal(opened[1])
    reason = opened[0].passed_over[0][1]
    require("Read-only file system" in reason, reason)
    return reason[:70]


def run_out_of_memory(work: Path) -> str:
    """A process that gets no more memory is told so, and does not end."""
    feed = {"image": np.zeros((60_000, 3, 8, 8), np.float32)}
    folder = write_tensors(work / "in", ["image"], feed)
    code, text = find_refusal(build_bundle(DYNAMIC_BATCH), "--limit", "16", folder, work)
    require(code == NO_MEMORY, f"code {code}: {text}")
    return text[:200]


PROOFS = (
    Proof("broken bundles", refuse_broken),
    Proof("variants that are damaged", refuse_variants),
    Proof("tokenizers that are damaged", refuse_tokenizers),
    Proof("no variant works", refuse_all),
    Proof("runtimes", refuse_runtimes),
    Proof("the oldest runtime", open_oldest),
    Proof("inputs", refuse_inputs),
    Proof("a folder that vanishes", survive_vanishing),
    Proof("a folder that vanishes early", survive_vanishing_early),
    Proof("read-only file systems", survive_read_only),
    Proof("out of memory", run_out_of_memory),
)
