"""Bundles for iOS in a real Swift compiler, on the real onnxruntime: outputs equal the golden ones.

Linux stands in for the phone: the same sources, the C API of the onnxruntime that edgepack itself
runs with, no Core ML. The bundle's module is compiled in Swift 6 mode, warnings being errors, and a
program that only imports it runs every golden input through the API that apps use.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from edgepack.base.resources import find_example_dir
from edgepack.builder.build import build
from edgepack.bundle.manifest import GoldenTensor, Manifest, ManifestVariant
from edgepack.bundle.reading import Bundle
from edgepack.ondevice.runtime.edgepack_ctc import Transcription
from edgepack.ondevice.runtime.edgepack_loader import golden_closeness_db, load, unpack_values
from edgepack.project.identifiers import make_identifiers, make_type_name
from onnx import TensorProto, helper

from tests.mobile.kotlin_models import (
    BOXES,
    FEW_BYTES,
    FRAMES,
    SEGMENTER,
    WIDE,
    check_palette,
)
from tests.mobile.proofs import NotHeldError, Proof, require
from tests.mobile.session_options import require_all, set_all
from tests.mobile.signatures import (
    ALL,
    BUCKETS,
    CAPTION,
    DETECTOR,
    DYNAMIC_BATCH,
    FACES,
    PAIR,
    PIXELS,
    READER,
    SAMPLES,
    SIZED,
    TEXT,
    Signature,
)
from tests.mobile.swift_rootfs import SwiftToolchain, toolchain

SWIFT = Path(__file__).with_name("swift")
STRICT = ["-swift-version", "6", "-warnings-as-errors"]
"""As a package with tools version 6 is compiled; nothing that a compiler warns of."""
LINK = ["-L/runtime", "-lonnxruntime"]
COUNTING = ["clang", "-O2", "-shared", "-fPIC", "-o", "counting.so", "counting.c"]


def _turn() -> onnx.GraphProto:
    """Return what a loop does in each turn: it adds one."""
    flag, value = (TensorProto.BOOL, []), (TensorProto.FLOAT, [1])
    return helper.make_graph(
        [
            helper.make_node("Add", ["before", "one"], ["after"]),
            helper.make_node("Identity", ["goes on"], ["goes on again"]),
        ],
        "turn",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("goes on", *flag),
            helper.make_tensor_value_info("before", *value),
        ],
        [
            helper.make_tensor_value_info("goes on again", *flag),
            helper.make_tensor_value_info("after", *value),
        ],
    )


LOOP = Signature(
    "loop",
    (
        helper.make_node("Loop", ["turns", "", "zero"], ["looped"], "loop", body=_turn()),
        helper.make_node("Mul", ["looped", "one"], ["sum"], "scale"),
    ),
    (("turns", TensorProto.INT64, [1]),),
    (("sum", TensorProto.FLOAT, [1]),),
    lambda _: {"turns": np.arange(1, 4)},
    (("zero", np.zeros(1, np.float32)), ("one", np.ones(1, np.float32))),
)
"""As long as an input says."""
NARROW = replace(
    WIDE,
    name="narrow",
    nodes=(*WIDE.nodes, helper.make_node("NonZero", ["output0"], ["places"], "places")),
    inputs=(("images", TensorProto.FLOAT16, [1, 3, 32, 32]),),
    outputs=(*WIDE.outputs, ("places", TensorProto.INT64, [3, "found"])),
    samples=lambda random: {"images": random.random((SAMPLES, 3, 32, 32)).astype(np.float16)},
)
"""A picture as float16, and an output of a size that only a run tells."""
OTHERS = (PIXELS, TEXT, SIZED, PAIR, CAPTION, WIDE, NARROW, BOXES, SEGMENTER, LOOP, FACES, READER)
MADE = (DYNAMIC_BATCH, DETECTOR, PIXELS, SIZED, PAIR, CAPTION, WIDE, FACES, READER)
"""Those that take pictures."""
SIZES = {
    **FRAMES,
    WIDE.name: [(64, 48)],
    NARROW.name: [(64, 48), (1280, 720)],
    FACES.name: [(64, 48)],
}
"""Sizes of the camera frames that a model is given, the smallest first."""
PICTURE = "picture(width: {width}, height: 23)"
CAPTION_TEXT = "Hello unaffable world!"
TOLD = {
    "classification": ".map { [$0.index, $0.label!, $0.score] as [Any] }",
    "detection": ".map { [$0.index, $0.label!, $0.score,"
    " $0.box.left, $0.box.top, $0.box.right, $0.box.bottom] as [Any] }",
    "embedding": ".rows",
    "text": ".rows",
}
"""Answers as rows of JSON, by their kind."""
BOXLESS = "a detection's boxes are in the pixels of a picture: make the input from one"


@dataclass(frozen=True)
class Compiled:
    """A bundle whose module is compiled in a folder, which is ``/work`` in the toolchain."""

    bundle: Bundle
    folder: Path
    tools: SwiftToolchain
    name: str
    """Of the type."""

    @property
    def module(self) -> str:
        """The module's name."""
        return f"Edgepack{self.name}"

    @property
    def manifest(self) -> Manifest:
        """The bundle's."""
        return self.bundle.manifest

    @property
    def variant(self) -> ManifestVariant:
        """The best that needs no more than a CPU."""
        return next(v for v in self.manifest.variants if v.backend == "cpu")

    def run(self, program: str, *, counted: bool = False) -> dict[str, Any]:
        """Compile a program that uses the module, run it, and return what it said.

        Args:
            program: Goes on after ``swift/Golden.swift``.
            counted: Whether it can ask for the bytes that were allocated (``swift/counting.c``).
        """
        shared = (SWIFT / "Golden.swift").read_text(encoding="utf-8")
        (self.folder / "main.swift").write_text(
            shared.replace("MODULE", self.module) + program + "\ntry finish()\n", encoding="utf-8"
        )
        (self.folder / "out").mkdir(exist_ok=True)
        include = f"bundle/Sources/C{self.module}/include"
        argv = ["swiftc", "-swift-version", "5", "-I", ".", "-Xcc", f"-I{include}", "-I", include]
        argv += ["main.swift", f"{self.module}.o", "-o", "proof", *LINK]
        self.tools.run(argv, folder=self.folder)
        run = ["./proof", "bundle", "out"]
        if counted:
            shutil.copy(SWIFT / "counting.c", self.folder)
            self.tools.run(COUNTING, folder=self.folder)
            run = ["env", "LD_PRELOAD=./counting.so", *run]
        done = self.tools.run(run, folder=self.folder)
        (self.folder / "out" / "stderr.txt").write_bytes(done.stderr)
        said: dict[str, Any] = json.loads((self.folder / "out" / "said.json").read_text("utf-8"))
        return said

    def written(self, name: str, like: GoldenTensor) -> np.ndarray:
        """Return a tensor that the program wrote; float16 as float32."""
        dtype = "float32" if like.dtype == "float16" else like.dtype
        return np.frombuffer((self.folder / "out" / name).read_bytes(), dtype).reshape(like.shape)


def compiled(project: Path, name: str, work: Path, mirrors: Sequence[str] = ()) -> Compiled:
    """Build a project's bundle for iOS and compile its module.

    Args:
        project: The project's file.
        name: Its name.
        work: A folder.
        mirrors: Modules of Apple's that it finds: those in ``swift/mirror``, each after those that
            it uses.

    Raises:
        NotHeldError: A variant was not built.
        EdgepackError: The build or the compiler failed.
    """
    result = build(project=project, targets=["ios"], out=work / "dist")
    require(not result.errors, f"not built: {', '.join(map(str, result.errors))}")
    bundle = result.bundles[0].bundle
    folder = work / "swift"
    folder.mkdir()
    moved = replace(bundle, path=bundle.path.rename(folder / "bundle"))
    made = Compiled(moved, folder, toolchain(), make_type_name(name))
    include = f"bundle/Sources/C{made.module}/include"
    sources = sorted((folder / "bundle" / "Sources" / made.module).glob("*.swift"))
    argv = ["swiftc", *STRICT, "-parse-as-library", "-O", "-wmo", "-I", include]
    argv += ["-module-name", made.module, "-emit-module", "-emit-object"]
    argv += ["-emit-module-path", f"{made.module}.swiftmodule", "-o", f"{made.module}.o"]
    argv += [str(source.relative_to(folder)) for source in sources]
    for mirror in mirrors:
        shutil.copy(SWIFT / "mirror" / f"{mirror}.swift", folder)
        own = ["-parse-as-library", "-emit-module", "-emit-object", "-module-name", mirror]
        made.tools.run(["swiftc", *STRICT, *own, "-I", ".", f"{mirror}.swift"], folder=folder)
    made.tools.run([*argv, "-I", "."], folder=folder)
    return made


def signature_holds(signature: Signature, work: Path) -> str:
    """Compile a signature's bundle once, and look at all that its code does."""
    made = compiled(signature.write(work / "project", "ios"), signature.name, work)
    check_palette(made.bundle)
    looks = [goldens_hold]
    if signature in MADE:
        looks.append(answers_hold)
    if signature is PAIR:
        looks.append(settings_hold)
    if signature is BUCKETS:
        looks.append(masks_may_be_left_out)
    if signature is TEXT:
        looks.append(text_holds)
    if signature.name in SIZES:
        looks.append(frames_hold)
    if signature is LOOP:
        looks.append(runs_are_cancelled)
    return "; ".join(look(made) for look in looks)


def settings_hold(made: Compiled) -> str:
    """Open a variant whose session has no option that is the default."""
    set_all(made.bundle.path, made.variant.id)
    goldens_hold(made)
    return require_all((made.folder / "out" / "stderr.txt").read_text())


def example_holds(work: Path) -> str:
    """Open the example as it is built by default: the best variant wants Core ML, which lacks."""
    made = compiled(find_example_dir() / "edgepack.yaml", "digits", work)
    require(made.manifest.variants[0].backend == "coreml", "the best variant is not for Core ML")
    return goldens_hold(made)


def goldens_hold(made: Compiled) -> str:
    """Run every golden input through the typed API, alone and in several tasks at once."""
    manifest, variant = made.manifest, made.variant
    said = made.run("\n".join(_golden_program(made)))
    require(said["variant"] == variant.id, f"{said['variant']} was opened, {said['passedOver']}")
    before = [each.id for each in manifest.variants[: manifest.variants.index(variant)]]
    require([name for name, _ in said["passedOver"]] == before, f"{said['passedOver']}")
    lacks = "CoreMLExecutionProvider is not in this onnxruntime (it has "
    require(all(why.startswith(lacks) for _, why in said["passedOver"]), f"{said['passedOver']}")
    require(said["telemetry"] == "1", "telemetry is on")
    require(said["passed"], f"the self-test found {said['decibels']}")
    worst = 200.0
    for number, golden in enumerate(manifest.goldens):
        for k, entry in enumerate(golden.outputs[variant.id]):
            wanted = _stored(made.bundle, entry)
            for name in (f"{number}-{k}.bin", f"{number}-{k}-again.bin"):
                found = made.written(name, entry).astype(wanted.dtype)
                near = golden_closeness_db(entry.model_dump(), wanted, found)
                worst = min(worst, near)
    require(worst >= variant.min_sqnr_db, f"outputs are {worst:.1f} dB near the golden ones")
    # numpy and Swift's own self-test judge the same outputs.
    told = min(said["decibels"])
    require(abs(told - worst) < 0.1, f"the self-test says {told:.1f} dB, it is {worst:.1f} dB")
    return f"{variant.id}, {len(manifest.goldens)} goldens, {worst:.0f} dB"


def _stored(bundle: Bundle, entry: GoldenTensor) -> np.ndarray:
    data, dtype = (bundle.path / entry.path).read_bytes(), np.dtype(entry.dtype)
    packed = entry.palette and entry.palette.model_dump()
    values = unpack_values(data, dtype, packed) if packed else np.frombuffer(data, dtype)
    return values.reshape(entry.shape if entry.stride == 1 else -1)


def _golden_program(made: Compiled) -> Iterator[str]:
    manifest = made.manifest
    variant = made.variant
    yield f"let model = try await {made.name}.open(from: .folder(bundle))"
    yield 'said["variant"] = model.variant'
    yield 'said["telemetry"] = getenv("ORT_DISABLE_TELEMETRY").map { String(cString: $0) }'
    yield 'said["passedOver"] = model.passedOver.map { [$0.variant, $0.reason] }'
    yield "let test = try model.selfTest()"
    yield 'said["passed"] = test.passed; said["decibels"] = test.decibels'
    for number, golden in enumerate(manifest.goldens):
        yield "do {"
        arguments = ", ".join(_arguments(made, golden.inputs))
        yield f"    let inputs = {made.name}.Inputs({arguments})"
        yield "    let outputs = try model.predictSync(inputs)"
        yield from _writes(manifest, golden.outputs[variant.id], f"{number}-{{}}", "outputs")
        # Threads share a model, and all get what one alone gets.
        kind = f"{made.name}.Outputs.self"
        yield f"    let all = try await withThrowingTaskGroup(of: {kind}) {{ group in"
        yield "        for _ in 0..<8 { group.addTask { try await model.predict(inputs) } }"
        yield "        return try await group.reduce(into: []) { $0.append($1) }"
        yield "    }"
        for name in _identify(manifest, golden.outputs[variant.id], "output"):
            yield f"    for each in all {{ precondition(each.{name} == outputs.{name}) }}"
        yield from _writes(manifest, golden.outputs[variant.id], f"{number}-{{}}-again", "all[7]")
        yield "}"


def _identify(manifest: Manifest, entries: Sequence[GoldenTensor], role: str) -> list[str]:
    """Return the names in Swift: the project's, where it has some, and else the model's."""
    described = manifest.input_descriptions if role == "input" else manifest.output_descriptions
    named = {name: own.name for name, own in described.items() if own.name}
    return make_identifiers([named.get(e.name, e.name) for e in entries], "swift", role)


def _arguments(made: Compiled, inputs: Sequence[GoldenTensor]) -> Iterator[str]:
    names = _identify(made.manifest, inputs, "input")
    for name, entry in zip(names, inputs, strict=True):
        reader = "readHalf" if entry.dtype == "float16" else "read"
        yield f'{name}: try {reader}("{_whole(made, entry)}", {entry.shape})'


def _whole(made: Compiled, entry: GoldenTensor) -> str:
    """Return where a tensor's values are without a palette, from the bundle on."""
    if entry.palette is None:
        return entry.path
    name = entry.path.replace("/", "-")
    (made.folder / name).write_bytes(_stored(made.bundle, entry).tobytes())
    return f"../{name}"


def _writes(
    manifest: Manifest, outputs: Sequence[GoldenTensor], file: str, source: str
) -> Iterator[str]:
    for k, name in enumerate(_identify(manifest, outputs, "output")):
        yield f'    try write({source}.{name}, "{file.format(k)}.bin")'


def answers_hold(made: Compiled) -> str:
    """Make inputs of pictures and a text, and compare the answers with those of Python's loader."""
    output, described = next(iter(made.manifest.output_descriptions.items()))
    given = list(_given(made))
    arguments = ", ".join(f"{each.name}: try {each.swift}" for each in given)
    ways = [f"{made.name}.Inputs({arguments})"]
    ways += [PICTURE.format(width=37)] if len(given) == 1 else []
    told = [
        f"try model.predictSync({way}).answers.{described.name or output}{TOLD[described.kind]}"
        for way in ways
    ]
    program = [
        f"let model = try await {made.name}.open(from: .folder(bundle))",
        f'said["answers"] = [{", ".join(told)}]',
    ]
    if described.kind == "detection":
        program += _boxless(described.name or output, given[0].name, ways[0])
    said = made.run("\n".join(program))
    python = {each.input: each.python for each in given if each.python is not None}
    wanted = _plain(load(made.bundle.path).predict(python)[output])
    for found in said["answers"]:
        require(len(found) == len(wanted) > 0, f"{found} instead of {wanted}")
        for one, other in zip(found, wanted, strict=True):
            require(one[:2] == other[:2], f"{one} instead of {other}")
            require(np.allclose(one[2:], other[2:], rtol=1e-4), f"{one} instead of {other}")
    require(said.get("boxless", BOXLESS) == BOXLESS, str(said.get("boxless")))
    return f"{len(wanted)} answers, best {wanted[0]}"


@dataclass(frozen=True)
class Given:
    """What one input is made of."""

    input: str
    name: str
    """Of the input in Swift."""
    swift: str
    """An expression that makes it."""
    python: Any
    """What Python's loader is given; None for what it makes of another input's text."""


def _given(made: Compiled) -> Iterator[Given]:
    """Return what the inputs are made of: pictures of several sizes, one text, golden tensors."""
    described = made.manifest.input_descriptions
    tokens = [each.tokens for each in described.values() if each.tokens]
    beside = {name for each in tokens for name in (each.attention_mask, each.token_type_ids)}
    golden = made.manifest.goldens[0].inputs
    names = _identify(made.manifest, golden, "input")
    for number, (entry, name) in enumerate(zip(golden, names, strict=True)):
        own = described.get(entry.name)
        if own and own.image:
            picture = PICTURE.format(width=37 + number)
            swift, python = f"model.{name}(of: {picture})", _pixels(37 + number)
        elif own and own.tokens:
            swift, python = f"model.{name}(of: {json.dumps(CAPTION_TEXT)})", CAPTION_TEXT
        elif entry.name in beside:
            swift, python = f"model.{name}(of: {json.dumps(CAPTION_TEXT)})", None
        else:
            swift = f'read("{_whole(made, entry)}", {entry.shape})'
            python = _stored(made.bundle, entry)
        yield Given(entry.name, name, swift, python)


def _pixels(width: int) -> np.ndarray:
    return (np.arange(width * 23 * 3) * 7 % 251).astype(np.uint8).reshape(23, width, 3)


def _boxless(output: str, picture: str, inputs: str) -> Iterator[str]:
    """Ask for boxes of a tensor that is the app's own, though its values are the same."""
    yield f"var own = {inputs}"
    yield f"own.{picture} = try Tensor(shape: own.{picture}.shape, scalars: own.{picture}.scalars)"
    yield "do {"
    yield f"    _ = try model.predictSync(own).answers.{output}"
    yield '    said["boxless"] = "it is taken"'
    yield "} catch {"
    yield '    said["boxless"] = "\\(error)"'
    yield "}"


def _plain(answers: Any) -> list[list[Any]]:
    """Return answers as rows: class, label, numbers; of a vector, its numbers behind nothing."""
    if isinstance(answers, np.ndarray):
        return [["", "", *vector] for vector in answers.tolist()]
    if isinstance(answers, Transcription):
        return [[answers.text, "", answers.score]]
    return [[each.index, each.label, each.score, *getattr(each, "box", ())] for each in answers]


def text_holds(made: Compiled) -> str:
    """Run the model on texts, and compare the vectors with Python's."""
    texts = ["", "Hello unaffable world!", "the quick brown fox jumped " * 3]
    said = made.run(f"""
let model = try await {made.name}.open(from: .folder(bundle))
said["vectors"] = try {json.dumps(texts)}.map {{ try model.predictSync($0).answers.hidden.scalars }}
""")
    python = load(made.bundle.path)
    for text, vector in zip(texts, said["vectors"], strict=True):
        wanted = python.predict(text)["hidden"][0]
        require(np.allclose(vector, wanted, rtol=1e-4), f"{text!r}: {vector}, not {wanted}")
    return f"{len(texts)} texts"


def runs_are_cancelled(made: Compiled) -> str:
    """Cancel a run of some days and one that waits for it: both end, and the next one runs."""
    said = made.run(f"""
let model = try await {made.name}.open(from: .folder(bundle))
@Sendable func sum(_ turns: Int64) async throws -> Float {{
    try await model.predict(.init(turns: Tensor(shape: [1], scalars: [turns]))).sum.scalars[0]
}}
func end(_ task: Task<Float, Error>) async -> String {{
    do {{
        return "it gave \\(try await task.value)"
    }} catch {{
        return "\\(type(of: error))"
    }}
}}
let began = clock()
let endless = Task.detached {{ try await sum(100_000_000_000) }}
// The processor works: the run has begun.
while clock() - began < CLOCKS_PER_SEC / 2 {{ try await Task.sleep(nanoseconds: 10_000_000) }}
let waiting = Task.detached {{ try await sum(1) }}
waiting.cancel()
endless.cancel()
said["cancelled"] = [await end(endless), await end(waiting)]
said["next"] = try await sum(3)
""")
    require(said["cancelled"] == ["CancellationError"] * 2, f"{said['cancelled']}")
    require(said["next"] == 3, f"the next call gave {said['next']}")
    return "a run and a waiting call are cancelled"


def frames_hold(made: Compiled) -> str:
    """Have a predictor take frames: none takes memory that grows with it, or with the outputs."""
    sizes = SIZES[made.manifest.name]
    text = (SWIFT / "Frames.swift").read_text("utf-8")
    text = text.replace("MODEL", made.name).replace("SIZES", str(sizes))
    said = made.run(text, counted=True)
    require(said["early"] == "there are no outputs: call predict first", f"{said['early']}")
    own = [bytes_ for bytes_, _ in said["frames"]]
    for (width, height), (bytes_, copied) in zip(sizes, said["frames"], strict=True):
        require(copied >= 3 * width * height, f"a copy is counted as {copied} bytes")
        require(bytes_ <= min(own[0], FEW_BYTES) + FEW_BYTES, f"frames take {own} bytes each")
    return f"frames of {len(sizes)} sizes take {max(own)} bytes at most"


def masks_may_be_left_out(made: Compiled) -> str:
    """Run a model with buckets without its mask, on lengths between, and refuse longer ones."""
    program = f"""
let model = try await {made.name}.open(from: .folder(bundle))
func ids(_ length: Int) throws -> Tensor<Int64> {{
    try Tensor(shape: [1, length], scalars: (0..<length).map {{ Int64($0 % 15 + 1) }})
}}
for length in [1, 3, 4, 5, 8] {{
    let outputs = try model.predictSync(.init(inputIds: ids(length)))
    precondition(outputs.hidden.shape == [1, length, 6])
    try write(outputs.hidden, "hidden-\\(length).bin")
    try write(outputs.answers.hidden, "vector-\\(length).bin")
}}
func refusal(_ ids: Tensor<Int64>) -> String {{
    do {{
        _ = try model.predictSync(.init(inputIds: ids))
        return "it was taken"
    }} catch {{
        return "\\(error)"
    }}
}}
said["tooLong"] = refusal(try ids(9))
said["noBatch"] = refusal(try Tensor(shape: [4], repeating: 1))
"""
    said = made.run(program)
    python = load(made.bundle.path)
    for length in (1, 3, 4, 5, 8):
        ids = (np.arange(length) % 15 + 1).astype(np.int64)[None]
        wanted = python({"input_ids": ids})["hidden"]
        found = np.frombuffer((made.folder / "out" / f"hidden-{length}.bin").read_bytes(), "f4")
        require(np.array_equal(found.reshape(wanted.shape), wanted), f"{length}: other values")
        vector = np.frombuffer((made.folder / "out" / f"vector-{length}.bin").read_bytes(), "f4")
        mean = wanted[0].astype(np.float64).mean(axis=0)
        require(np.allclose(vector, mean / np.linalg.norm(mean), rtol=1e-5), f"{length}: vector")
    for what, shape in (("tooLong", (1, 9)), ("noBatch", (4,))):
        try:
            python({"input_ids": np.ones(shape, np.int64)})
        except ValueError as error:
            # Python quotes the names of dimensions in a shape.
            words = str(error).replace("'sequence']", "sequence]")
            require(said[what] == words, f"{said[what]!r} instead of {words!r}")
        else:
            raise NotHeldError(f"Python takes {shape}")
    return "5 lengths in 2 buckets; what does not fit is refused in Python's words"


PROOFS = (
    *(Proof(each.name, partial(signature_holds, each)) for each in (*ALL, *OTHERS)),
    Proof("the example", example_holds),
)
