"""Bundles of an Android target on the Java virtual machine: their own Kotlin and their models.

Each bundle is built by edgepack, its sources are compiled as they lie in it, against Android's own
classes, and run with the desktop package of onnxruntime of the version that the bundle pins.
Stand-ins for what is native in Android are in ``kotlin/models``; assets lie in one file, as in an
app's package. What comes out is compared with the golden tensors and with the Python loader.
"""

from __future__ import annotations

import atexit
import json
import platform
import re
import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, replace
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import onnx
from edgepack.apps.names import App, AppTensor, make_app
from edgepack.apps.render import format_kotlin_string
from edgepack.builder.build import build
from edgepack.bundle.reading import Bundle
from edgepack.errors import ToolError
from edgepack.model.facts import TensorSpec
from edgepack.ondevice.runtime import edgepack_loader as loader
from edgepack.ondevice.runtime.edgepack_answers import AnswerOptions, Class, Decision, Detection
from edgepack.ondevice.runtime.edgepack_ctc import Transcription
from edgepack.ondevice.runtime.edgepack_masks import Mask
from edgepack.project.loading import read_project
from edgepack.project.profile import load_profile
from onnx import TensorProto, helper

from tests.mobile.comparing import differences
from tests.mobile.jvm import (
    ANDROID,
    COROUTINES,
    ORT,
    STDLIB,
    compile_kotlin,
    jars,
    run_main,
    run_tool,
)
from tests.mobile.proofs import Proof, require
from tests.mobile.sealing import seal
from tests.mobile.session_options import require_all, set_all
from tests.mobile.signatures import (
    ALL,
    BUCKETS,
    CAPTION,
    DETECTOR,
    DYNAMIC_BATCH,
    FACES,
    HALF,
    OTHER_PRIORS,
    PAIR,
    PIXELS,
    READER,
    SAMPLES,
    SIZED,
    TEXT,
    Signature,
)

HERE = Path(__file__).parent
STAND_INS = ("Assets", "Device", "Looper", "SystemClock")
"""Of what is native in Android."""
TARGET = "android"
NNAPI = "android-nnapi"
HEXAGON = "ADSP_LIBRARY_PATH"
"""Where Qualcomm's NPU finds its libraries, for bundles with QNN."""
NEAR_DB = 60.0
"""How near float outputs of two versions of onnxruntime are to each other."""

PASSED_OVER = replace(
    DYNAMIC_BATCH,
    name="passed-over",
    variants="[{backend: nnapi, recipe: fp32}, {backend: cpu, recipe: fp32}]",
    project=f"dims: {{batch: 1}}\n{DYNAMIC_BATCH.project}",
)
"""A variant that a desktop lacks the provider of comes first."""

AS_SHIPPED = replace(
    DYNAMIC_BATCH,
    name="as-shipped",
    variants="",
    project=f"dims: {{batch: 1}}\n{DYNAMIC_BATCH.project}",
)
"""The target's own variants: those that an x86-64 emulator gets."""

# Reserved words of both languages and of Java, members of classes, functions and properties that
# the sources use or that are in scope where they stand, names that are alike once mended, and what
# is no word at all.
_WORDS = """
    class fun in is object val var when typealias this super null true return throw try interface
    package break continue else for while typeof import let func init self nil void int public
    static final catch constructor data field it value open suspend to wait notify notifyAll
    hashCode equals toString getClass javaClass finalize component1 copy close feed mapOf opened
    meaning tensors answers variant predict outputs inputs shape size keys values entries lazy
    getValue map apply run also Pair String List Tensor Inputs FloatTensor Outputs Companion
    INSTANCE isOpen getX x X x2 x:0 x/0 x.0 x-0 0 2nd a*/b /* $x " \\ ` @ 输入 é
"""
_NAMES = (*_WORDS.split(), " ", "a b", "a\nb")
AWKWARD = Signature(
    "class",
    tuple(helper.make_node("Neg", [n], [f"{n} "], f"n{k}") for k, n in enumerate(_NAMES)),
    tuple((name, TensorProto.FLOAT, [1, 2]) for name in _NAMES),
    tuple((f"{name} ", TensorProto.FLOAT, [1, 2]) for name in _NAMES),
    lambda random: {n: random.random((SAMPLES, 2)).astype(np.float32) for n in _NAMES},
)
"""Inputs and outputs whose names code cannot have."""

WIDE = replace(
    DETECTOR,
    name="wide",
    nodes=(
        helper.make_node("Cast", ["images"], ["narrow"], "cast", to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["narrow"], ["m"], "mean", axes=[1, 2, 3], keepdims=1),
        *DETECTOR.nodes[1:],
    ),
    inputs=(("images", TensorProto.DOUBLE, [1, 3, 32, 32]),),
    samples=lambda random: {
        "images": random.integers(0, 128, (SAMPLES, 3, 32, 32)) / [[[128.0]], [[129.0]], [[130.0]]]
    },
)
"""A picture as float64, whose channels have different values."""
PICTURES = {DETECTOR.name: 1, WIDE.name: 3}
"""How many channels the palette of a golden input has, where that is looked at."""
WAYS = (
    "bytes, width, height",
    "argb, width, height",
    "bitmap",
    "bytes, width, height, 3 * width, PixelOrder.RGB",
    "Picture.of(argb, width, height)",
)
"""How a picture is given, in Kotlin."""
FEW = "AnswerOptions(top = 1, most = 1)"
"""Options for one call, in Kotlin."""
TEXTS = ["", "Was it a car?", "\u00c9t\u00e9 [MASK] 12,5 unbelievable unaffable"]

BOXES = replace(
    DETECTOR,
    name="boxes",
    nodes=(
        *DETECTOR.nodes[:2],
        helper.make_node("Mul", ["s", "nothing"], ["n"], "nothing"),
        helper.make_node("Expand", ["n", "shape"], ["output0"], "expand"),
    ),
    outputs=(("output0", TensorProto.FLOAT, [1, 84, 8400]),),
    constants=(
        DETECTOR.constants[0],
        ("nothing", np.array(0.01, np.float32)),
        ("shape", np.array([1, 84, 8400], np.int64)),
    ),
    project=DETECTOR.project.replace(", labels: labels.txt", ""),
)
"""An output of 2.8 MB in which nothing is found."""
SEGMENTER = Signature(
    "segmenter",
    (
        helper.make_node("Conv", ["images", "w"], ["classes"], "conv", strides=[2, 2]),
        helper.make_node("ReduceMean", ["classes"], ["means"], "mean", axes=[2, 3], keepdims=0),
        helper.make_node("Sigmoid", ["means"], ["odds"], "odds"),
    ),
    (("images", TensorProto.FLOAT, [1, 3, 32, 32]),),
    (("classes", TensorProto.FLOAT, [1, 3, 16, 16]), ("odds", TensorProto.FLOAT, [1, 3])),
    DETECTOR.samples,
    (("w", np.array([[1, -1, 0], [0, 1, -1], [-1, 0, 1]], np.float32).reshape(3, 3, 1, 1)),),
    "inputs: {images: {image: {resize: {short_side: 36, crop: 32}, scale: 0.00392157}}}\n"
    "outputs: {classes: {kind: mask, labels: labels.txt}, odds: {kind: probability}}",
    "[{backend: cpu, recipe: fp32}]",
    (("labels.txt", "sky\nroad\ntree\n"),),
)
"""A class for each place of a picture, and decisions."""
FRAMES = {
    SEGMENTER.name: [(64, 48)],
    FACES.name: [(64, 48)],
    DETECTOR.name: [(64, 48), (1280, 720), (4000, 3000)],
    BOXES.name: [(64, 48), (4000, 3000)],
    PIXELS.name: [(64, 48), (1280, 720)],
    DYNAMIC_BATCH.name: [(64, 48), (1280, 720)],
}
"""Sizes of the camera frames that a model is given, the smallest first."""
FEW_BYTES = 8192
"""What calls may allocate, more or less."""

SIGNATURES = (
    *ALL,
    PIXELS,
    SIZED,
    PAIR,
    CAPTION,
    WIDE,
    PASSED_OVER,
    AS_SHIPPED,
    AWKWARD,
    TEXT,
    BOXES,
    SEGMENTER,
    FACES,
    READER,
)


@dataclass(frozen=True)
class Subject:
    """A bundle with its sources, compiled together with the program that uses it."""

    app: App
    bundle: Bundle
    path: tuple[Path, ...]
    """Where the program's classes are, and all that they use."""


@cache
def subjects() -> dict[str, Subject]:
    """Build the bundles and compile their sources, all at once: each has a package of its own.

    Raises:
        EdgepackError: One cannot be built or compiled.
    """
    work = Path(mkdtemp(prefix="edgepack-kotlin-"))
    atexit.register(shutil.rmtree, work, ignore_errors=True)
    made = {}
    for signature in SIGNATURES:
        target = NNAPI if "nnapi" in signature.variants else TARGET
        project = signature.write(work / signature.name, target)
        result = build(project=project, out=work / "dist")
        result.require_all()
        bundle = result.bundles[0].bundle
        made[signature.name] = app_of_bundle(bundle, project), bundle
    sources = [bundle.path / "src" / "main" / "kotlin" for _, bundle in made.values()]
    libraries = jars(STDLIB, ORT, ANDROID)
    # Apps without coroutines compile and run with what is compiled with them.
    classes = compile_kotlin(sources, work / "classes", classpath=[*libraries, *jars(COROUTINES)])
    programs = [write_program(*each, work / "programs" / name) for name, each in made.items()]
    path = (stand_ins(work), classes, *libraries)
    friend = [f"-Xfriend-paths={classes}"]
    proof = compile_kotlin(programs, work / "proof", classpath=path, options=friend)
    return {name: Subject(app, bundle, (proof, *path)) for name, (app, bundle) in made.items()}


def write_program(app: App, bundle: Bundle, folder: Path) -> Path:
    """Write the program that uses a bundle, and its README's example, into its package."""
    folder.mkdir(parents=True)
    (folder / "Shown.kt").write_text(shown(app, (bundle.path / "README.md").read_text()))
    (folder / "Typed.kt").write_text(typed(app))
    text = (HERE / "kotlin" / "models" / "Proof.kt").read_text()
    package = f"package {app.kotlin_package}"
    (folder / "Proof.kt").write_text(text.replace("package edgepack.subject", package))
    return folder


def app_of_bundle(bundle: Bundle, project: Path) -> App:
    """Return what the templates were given."""
    inputs, outputs = (
        [TensorSpec(tensor.name, tensor.dtype, tuple(tensor.shape)) for tensor in tensors]
        for tensors in (bundle.manifest.inputs, bundle.manifest.outputs)
    )
    return make_app(
        read_project(project).project, load_profile(bundle.manifest.target), inputs, outputs
    )


def stand_ins(work: Path) -> Path:
    """Compile the stand-ins for what is native in Android; they come first in a class path."""
    shared = [HERE / "kotlin" / name for name in ("Bitmap.kt", "Build.kt")]
    own = [HERE / "kotlin" / "models" / f"{name}.kt" for name in STAND_INS]
    return compile_kotlin([*shared, *own], work / "android", classpath=jars(STDLIB))


def shown(app: App, readme: str) -> str:
    """Return the README's example as a function."""
    [example] = re.findall(r"```kotlin\nimport [^\n]*\n(.*?)```", readme, re.DOTALL)
    streams = re.findall(r"```kotlin\n(// On one thread.*?)```", readme, re.DOTALL)
    require(len(streams) == _has_predictor(app), "the README shows a predictor, or none")
    given = [t for t in app.given if not t.image and not t.text]
    parameters = "".join(f"    {tensor.kotlin}: {tensor.kotlin_type},\n" for tensor in given)
    return f"""\
package {app.kotlin_package}

import android.content.Context
import android.graphics.Bitmap
import android.media.Image

@Suppress("UNUSED_PARAMETER", "UNUSED_VARIABLE", "UNUSED_EXPRESSION", "NAME_SHADOWING")
internal fun shown(
    context: Context, bitmap: Bitmap, text: String,
{parameters}) {{
{example}}}

/** What CameraX's class of this name has. */
internal class ImageProxy(val image: Image?, val imageInfo: Info) {{
    class Info(val rotationDegrees: Int)
}}

@Suppress("UNUSED_PARAMETER", "UNUSED_VARIABLE")
internal fun streamed(model: {app.type_name}, proxy: ImageProxy) {{
{"".join(streams)}}}
"""


def _has_predictor(app: App) -> bool:
    return app.image_input is not None and len(app.inputs) == 1


def typed(app: App) -> str:
    """Return Kotlin that names each input and output of a model, as an app does."""
    name = app.type_name
    given = "".join(f"    {t.kotlin} = {_given(t)},\n" for t in (*app.needed, *app.masks))
    outputs = "".join(
        f'    Pair("{t.dtype} {n}", outputs.{t.kotlin}),\n' for n, t in enumerate(app.outputs)
    )
    answers = "".join(
        f"    .put({format_kotlin_string(t.name)}, asJson(outputs.answers.{t.kotlin}))\n"
        for t in app.answered
    )
    ways = WAYS if app.pictures else ()
    of_pictures = [f"{name}.Inputs({_made(app, way)})" for way in ways]
    of_pictures += [way for way in ways if app.image_input]
    of_text = [] if app.pictures or not app.texts else [f"{name}.Inputs({_made(app, '')})"]
    of_text += ["text"] if app.text_input else []
    few = f", options = {FEW}" if app.answered else ""
    return f"""\
package {app.kotlin_package}

import android.graphics.Bitmap
import java.nio.ByteBuffer
import org.json.JSONArray
import org.json.JSONObject

internal typealias Subject = {name}

internal fun inputs(feed: Tensors): {name}.Inputs = {name}.Inputs(
{given})

internal fun typed(outputs: {name}.Outputs): Map<String, Tensor> = mapOf(
{outputs})

@Suppress("UNUSED_PARAMETER")
internal fun answers(outputs: {name}.Outputs): JSONObject = JSONObject()
{answers}

@Suppress("UNUSED_PARAMETER")
internal fun pictures(
    subject: {name}, feed: Tensors, text: String,
    bytes: ByteBuffer, argb: IntArray, bitmap: Bitmap, width: Int, height: Int,
): List<JSONObject> = listOf({_calls(of_pictures)})

/** The same with [FEW]. */
@Suppress("UNUSED_PARAMETER")
internal fun few(
    subject: {name}, feed: Tensors, text: String,
    bytes: ByteBuffer, argb: IntArray, bitmap: Bitmap, width: Int, height: Int,
): List<JSONObject> = listOf({_calls(of_pictures, few)})

{misnamed(app)}

@Suppress("UNUSED_PARAMETER")
internal fun text(subject: {name}, feed: Tensors, text: String): List<JSONObject> =
    listOf({_calls(of_text)})

{faked(app)}

{steady(app)}

internal fun asJson(answer: Any): JSONArray = when (answer) {{
    is List<*> -> JSONArray(answer.map {{ asJson(it!!) }})
    is Classification -> JSONArray(listOf(answer.index, answer.label, answer.score.toDouble()))
    is Detection -> JSONArray(
        listOf(answer.index, answer.label, answer.score.toDouble(), box(answer), points(answer)),
    )
    is Mask -> JSONArray(listOf(answer.width, answer.height, JSONArray(answer.classes.toList())))
    is Decision -> JSONArray(listOf(answer.score.toDouble(), answer.positive))
    is Transcription -> JSONArray(listOf(answer.text, answer.score.toDouble()))
    else -> JSONArray((answer as FloatArray).map {{ it.toDouble() }})
}}

private fun box(found: Detection): JSONArray =
    JSONArray(listOf(found.left, found.top, found.right, found.bottom).map {{ it.toDouble() }})

private fun points(found: Detection): JSONArray =
    JSONArray(found.keypoints.map {{ JSONArray(listOf(it.x, it.y, it.score)) }})
"""


def faked(app: App) -> str:
    """Return Kotlin that stands in for a model, as an app's own test has it: all of it is public.

    It answers a picture or a text with what it was made of.
    """
    name = app.type_name
    options = "options: AnswerOptions" if app.answered else ""
    given = f", {options}" if options else ""
    lines = [
        f"internal class Fake(private val outputs: {name}.Outputs) : {name}Model {{",
        '    override val variant = "fake"',
        '    override val passedOver = listOf(PassedOver("better", "not here"))',
        f"    override fun predict(inputs: {name}.Inputs{given}) = outputs",
        "    override fun selfTest() = SelfTest(variant, listOf(200.0), 30.0)",
        "    override fun close() = Unit",
    ]
    for kind, tensors, whole in (
        ("picture: Picture", app.pictures, app.image_input),
        ("text: String", app.texts, app.text_input),
    ):
        lines += [
            f"    override fun {t.kotlin}Of({kind}): {t.kotlin_type} = throw AssertionError()"
            for t in tensors
        ]
        lines += [f"    override fun predict({kind}{given}) = outputs"] if whole else []
    outputs = [f"it.{tensor.kotlin}" for tensor in app.outputs]
    answers = ", ".join(f"it.answers.{tensor.kotlin}" for tensor in app.answered)
    outputs += [f"{name}.Answers({answers})"] if answers else []
    again = f"outputs.let {{ {name}.Outputs({', '.join(outputs)}) }}"
    return "\n".join(
        [
            *lines,
            "}",
            "",
            "/** Returns a model that gives the same outputs again, made anew. */",
            f"internal fun fake(outputs: {name}.Outputs): {name}Model = Fake({again})",
        ]
    )


def misnamed(app: App) -> str:
    """Return Kotlin with the calls that name a label that there is not."""
    options = 'AnswerOptions(allow = listOf("no such label"))'
    calls = [f"subject.predict(inputs(feed), {options})"]
    if _has_predictor(app):
        picture = "Picture.of(IntArray(64), 8, 8)"
        calls.append(f"subject.predictor().use {{ it.predict({picture}, {options}) }}")
    listed = ", ".join(f"{{ {call} }}" for call in calls) if _has_labels(app) else ""
    head = f"internal fun misnamed(subject: {app.type_name}, feed: Tensors): List<() -> Any?> ="
    return f'@Suppress("UNUSED_PARAMETER")\n{head} listOf({listed})'


def _has_labels(app: App) -> bool:
    return any(tensor.answer in ("classification", "detection") for tensor in app.answered)


def steady(app: App) -> str:
    """Return Kotlin that gives pictures to a model's predictor, and what copies its outputs."""
    name = app.type_name
    head = f"internal fun steady(subject: {name}): Pair<(Picture) -> Any?, () -> {name}.Outputs>? ="
    again = f"internal fun again(subject: {name}, picture: Picture): {name}.Outputs ="
    if not _has_predictor(app):
        unused = '@Suppress("UNUSED_PARAMETER")'
        return f"{unused}\n{head} null\n\n{unused}\n{again} throw AssertionError()"
    few = f", options = {FEW}" if app.answered else ""
    made = f"subject.predictor().let {{ Pair({{ p -> it.predict(p{few}) }}, it::outputs) }}"
    return f"{head}\n    {made}\n\n{again} subject.predict(picture{few})"


def _made(app: App, picture: str) -> str:
    """Return Kotlin that makes inputs of a picture and a text; what is neither is as it was."""
    given = []
    for tensor in app.needed:
        made = picture if tensor.image else "text"
        how = (
            f"subject.{tensor.kotlin}Of({made})" if tensor.image or tensor.text else _given(tensor)
        )
        given.append(f"{tensor.kotlin} = {how}")
    return ", ".join(given)


def _calls(ways: list[str], options: str = "") -> str:
    return ", ".join(f"answers(subject.predict({way}{options}))" for way in ways)


def _given(tensor: AppTensor) -> str:
    name = format_kotlin_string(tensor.name)
    if tensor.mask:
        return f"feed[{name}] as {tensor.kotlin_type}?"
    return f"feed.getValue({name}) as {tensor.kotlin_type}"


def cases(subject: Subject) -> dict[str, dict[str, np.ndarray]]:
    """Return inputs to run: the golden ones, without masks, and of other sizes, some too large."""
    bundle = loader.Bundle(subject.bundle.path)
    found = {f"golden{n}": bundle.read_golden_inputs(n) for n in range(bundle.goldens)}
    masks = {tensor.name for tensor in subject.app.masks}
    if masks:
        found["unmasked"] = {n: a for n, a in found["golden0"].items() if n not in masks}
    first = found["golden0"]
    free = {dim for spec in bundle.inputs for dim in spec.shape if isinstance(dim, str)}
    for size in (1, 2, 3, 7, 9) if free else ():
        found[f"size{size}"] = bundle.shapes.resize_feed(first, dict.fromkeys(free, size))
    return found


def pictures(subject: Subject) -> list[np.ndarray]:
    """Return pictures to run, uint8 (H, W, 3), if the model takes any."""
    if not subject.app.pictures:
        return []
    random = np.random.default_rng(7)
    shapes = ((31, 47), (100, 20), (8, 8))
    return [random.integers(0, 256, (*shape, 3), np.uint8) for shape in shapes]


def texts(subject: Subject) -> list[str]:
    """Return texts to run, if the model takes one and no picture."""
    return TEXTS if subject.app.texts and not subject.app.pictures else []


def made_of(subject: Subject, picture: np.ndarray | None, text: str) -> dict[str, Any]:
    """Return what Python's loader is given for a picture and a text; the rest as in the golden."""
    golden = loader.Bundle(subject.bundle.path).read_golden_inputs(0)
    return {
        tensor.name: picture if tensor.image else text if tensor.text else golden[tensor.name]
        for tensor in subject.app.needed
        if tensor.text in ("", tensor.name)
    }


def run(
    subject: Subject,
    work: Path,
    bundle: Path | None = None,
    stored: tuple[str, ...] = (".onnx", ".ort"),
    options: tuple[str, ...] = (),
) -> tuple[dict[str, Any], Path]:
    """Run the program on a bundle's files; return what it found and the folder of its outputs.

    Args:
        subject: The bundle and the program.
        work: A folder.
        bundle: Another folder of files; default: the bundle's.
        stored: How the names of files end that the app's package does not compress.
        options: For the virtual machine.
    """
    folder = work / "phone"
    folder.mkdir()
    write_apk(bundle or subject.bundle.path, subject.app, folder, stored)
    write_cases(subject, folder)
    some_floats().tofile(folder / "floats.bin")
    every_half().tofile(folder / "halves.bin")
    done = run_main(
        f"{subject.app.kotlin_package}.ProofKt",
        folder,
        classpath=subject.path,
        options=[f"-Xlog:class+load=info:file={folder / 'classes.log'}", *options],
    )
    (folder / "stderr.txt").write_bytes(done.stderr)
    return json.loads(done.text.splitlines()[-1]), folder


def write_cases(subject: Subject, folder: Path, **more: object) -> None:
    """Write what is to run into a folder: ``cases.json``, and the tensors and pictures in it."""
    tensors = [
        {
            "id": name,
            "inputs": [
                _written(folder, f"{name}-in{n}.bin", key, array)
                for n, (key, array) in enumerate(feed.items())
            ],
        }
        for name, feed in cases(subject).items()
    ]
    taken = []
    for number, picture in enumerate(pictures(subject)):
        picture.tofile(folder / f"picture{number}.bin")
        height, width = picture.shape[:2]
        taken.append({"path": f"picture{number}.bin", "width": width, "height": height})
    wanted = {
        "tensors": tensors,
        "pictures": taken,
        "caption": TEXTS[1],
        "texts": texts(subject),
        "frames": FRAMES.get(subject.bundle.manifest.name, []),
        "variants": [variant.id for variant in subject.bundle.manifest.variants],
        **more,
    }
    (folder / "cases.json").write_text(json.dumps(wanted))


def _written(folder: Path, path: str, name: str, array: np.ndarray) -> dict[str, Any]:
    array.tofile(folder / path)
    return {"name": name, "path": path, "dtype": array.dtype.name, "shape": list(array.shape)}


def write_apk(bundle: Path, app: App, folder: Path, stored: tuple[str, ...]) -> None:
    """Write a bundle's assets, as :func:`write_assets` does."""
    files = {f"{app.assets}/{path}": bundle / path for path in list_assets(bundle)}
    write_assets(files, folder, stored)


def write_assets(files: Mapping[str, Path], folder: Path, stored: tuple[str, ...]) -> None:
    """Write files, by their paths among an app's assets, one behind the other at multiples of 4."""
    lines, place = [], 4
    with (folder / "apk").open("wb") as apk:
        apk.write(b"APK.")
        for path, file in files.items():
            data = file.read_bytes()
            lines.append(f"{place} {len(data)} {int(path.endswith(stored))} {path}")
            data += b"." * (-len(data) % 4)
            apk.write(data)
            place += len(data)
    (folder / "index").write_text("\n".join(lines))


def list_assets(bundle: Path) -> list[str]:
    """Return the files of a bundle that its build script takes into an app's assets."""
    script = (bundle / "build.gradle.kts").read_text("utf-8")
    [given] = re.findall(r"bundle\.include\((.*)\)", script)
    [kept_out] = re.findall(r"bundle\.exclude\((.*)\)", script)
    found = {path for pattern in json.loads(f"[{given}]") for path in bundle.glob(pattern)}
    found -= {path for pattern in json.loads(f"[{kept_out}]") for path in bundle.glob(pattern)}
    files = (file for path in found for file in ([path] if path.is_file() else path.rglob("*")))
    return sorted({file.relative_to(bundle).as_posix() for file in files if file.is_file()})


def prove(signature: Signature) -> Callable[[Path], str]:
    """Return a proof that a model's API gives what the Python loader gives."""

    def look(work: Path) -> str:
        subject = subjects()[signature.name]
        found, folder = run(subject, work)
        model = loader.load(subject.bundle.path, cache=work / "loader")
        check_choice(found, model)
        check_palette(subject.bundle)
        near = [check_case(subject, model, found, folder, n) for n in range(len(found["cases"]))]
        shown = check_answers(subject, model, found)
        check_boxes(subject, found)
        check_labels(subject, found)
        steadied = check_frames(found)
        check_halves(folder)
        check_use(found)
        check_telemetry(folder)
        return (
            f"{found['variant']}, {len(near)} runs, golden at {min(found['decibels']):.0f} dB"
            f"{shown}{steadied}; {found['threads']}"
        )

    return look


def check_choice(found: Mapping[str, Any], model: loader.Model) -> None:
    """Compare the variant, what was passed over and why, and how near goldens are."""
    require(found["variant"] == model.variant, f"{found['variant']} runs, not {model.variant}")
    ours = [[name, _without_list(reason)] for name, reason in found["passedOver"]]
    theirs = [[name, _without_list(reason)] for name, reason in model.passed_over]
    require(ours == theirs, f"passed over: {ours}, not {theirs}")
    require(bool(found["passed"]), f"the self-test failed: {found['decibels']}")
    require(len(found["decibels"]) == model.bundle.goldens, f"{found['decibels']}")


def check_palette(bundle: Bundle) -> None:
    """Hold that the golden input of a picture has a palette, where that is looked at."""
    channels = PICTURES.get(bundle.manifest.name)
    for tensor in bundle.manifest.goldens[0].inputs if channels else ():
        sizes = tensor.palette.sizes if tensor.palette else []
        require(len(sizes) == channels, f"{tensor.name} has a palette of {len(sizes)} channels")


def _without_list(reason: str) -> str:
    """Return a reason without the list of providers, which depends on the package."""
    return re.sub(r" \(it has .*?\)", "", reason)


def check_case(
    subject: Subject, model: loader.Model, found: Mapping[str, Any], folder: Path, number: int
) -> str:
    """Compare the outputs of one case with the Python loader's, and golden ones with the files."""
    name, feed = list(cases(subject).items())[number]
    shapes = found["cases"][number]
    try:
        wanted = model(feed)
    except ValueError as error:
        require(shapes == str(error), f"{name}: {shapes!r}, not {str(error)!r}")
        return name
    require(isinstance(shapes, list), f"{name}: {shapes}")
    for n, tensor in enumerate(subject.app.outputs):
        data = np.fromfile(folder / f"{name}-{n}.bin", tensor.dtype).reshape(shapes[n])
        near = loader.closeness_db(wanted[tensor.name], data)
        require(near >= NEAR_DB, f"{name}: {tensor.name!r} is {near:.1f} dB near")
        if name.startswith("golden"):
            index, least = int(name[6:]), model.entry["min_sqnr_db"]
            golden = model.bundle.read_golden_outputs(index, model.variant)[tensor.name]
            entries = model.bundle.manifest["goldens"][index]["outputs"][model.variant]
            [entry] = [each for each in entries if each["name"] == tensor.name]
            near = loader.golden_closeness_db(entry, golden, data)
            require(near >= least, f"{name}: {tensor.name!r} is {near:.1f} dB near the golden one")
    return name


def check_answers(subject: Subject, model: loader.Model, found: Mapping[str, Any]) -> str:
    """Compare the answers for pictures and texts."""
    few = AnswerOptions(top=1, most=1)
    given: list[tuple[str, np.ndarray | None, str, AnswerOptions | None]] = [
        (f"picture of {each.shape}, {options}", each, TEXTS[1], options)
        for options in (None, few)
        for each in pictures(subject)
    ]
    given += [(repr(text), None, text, None) for text in texts(subject)]
    shown = [*found["pictures"], *found["few"], *found["texts"]]
    for (which, *one, options), answers in zip(given, shown, strict=True):
        wanted = model.predict(made_of(subject, *one), options=options)
        wanted = {name: _plain(answer) for name, answer in wanted.items()}
        for difference in differences({n: a for n, a in wanted.items() if n in answers}, answers):
            require(held=False, otherwise=f"{which}: {difference}")
    return f", {len(given)} pictures or texts" if given else ""


def check_boxes(subject: Subject, found: Mapping[str, Any]) -> None:
    """Hold that no boxes come of a tensor of the app's own making."""
    if any(tensor.answer == "detection" for tensor in subject.app.answered):
        said = found["boxless"]
        wanted = "IllegalStateException: a detection's boxes are in the pixels of a picture: .*"
        require(re.fullmatch(wanted, said) is not None, said)


def check_labels(subject: Subject, found: Mapping[str, Any]) -> None:
    """Hold that each call which names a label that there is not is refused."""
    said = found["misnamed"]
    wanted = 1 + _has_predictor(subject.app) if _has_labels(subject.app) else 0
    require(len(said) == wanted, f"{said}")
    for each in said:
        held = each.startswith("IllegalArgumentException: the option 'allow' names ")
        require(held, each)


def check_frames(found: Mapping[str, Any]) -> str:
    """Hold that a predictor allocates no more for large frames than for the smallest."""
    bytes_: list[int] = found["frames"]
    for each in bytes_:
        require(each <= min(bytes_[0], FEW_BYTES) + FEW_BYTES, f"frames take {bytes_} bytes each")
    return f", frames take {max(bytes_)} bytes at most" if bytes_ else ""


def _plain(answer: Any) -> Any:
    """Return an answer as lists, which JSON has."""
    if isinstance(answer, Class | Detection | Decision | Transcription):
        return _plain(astuple(answer))
    if isinstance(answer, Mask):
        # Kotlin's bytes have a sign.
        return [answer.width, answer.height, answer.classes.reshape(-1).view(np.int8).tolist()]
    if isinstance(answer, np.ndarray | list | tuple):
        return [_plain(part) for part in answer]
    return float(answer) if isinstance(answer, np.floating) else answer


def every_half() -> np.ndarray:
    """Return every float16, but for those that are no number."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    return halves[~np.isnan(halves)]


def some_floats() -> np.ndarray:
    """Return what lies between two float16 next to each other, and just beside that."""
    finite = np.sort(every_half()[np.isfinite(every_half())]).astype(np.float32)
    middle = (finite[1:] + finite[:-1]) / 2
    beside = [np.nextafter(middle, np.float32(end)) for end in (-np.inf, np.inf)]
    ends = np.array([65504, 65519.996, 65520, 1e38, np.inf, -np.inf, 1e-8, -1e-45], np.float32)
    return np.concatenate([middle, *beside, ends])


def check_halves(folder: Path) -> None:
    """Compare conversions from and to float16 with numpy's, bit by bit."""
    for name, given, dtype in (
        ("floats", some_floats(), np.float16),
        ("halves", every_half(), np.float32),
    ):
        found = np.fromfile(folder / f"{name}.out", dtype)
        with np.errstate(over="ignore"):
            wanted = given.astype(dtype)
        alike = found.tobytes() == wanted.tobytes()
        require(alike, f"{name}: {np.count_nonzero(found != wanted)} differ from numpy's")


def check_use(found: Mapping[str, Any]) -> None:
    """Hold what the API says about threads, closing and mistakes."""
    wanted = {
        "threads": "200 of 200 equal, 4 of 4 ended by closing",
        "closed": "IllegalStateException: this .* is closed",
        "fake": "equal",
        "main": "IllegalStateException: .*open blocks, .*openAsync",
        "unknown": "IllegalArgumentException: the bundle has no variant 'no-such'; it has: .*",
        "async": "java.lang.IllegalArgumentException: the bundle has no variant 'no-such'; .*",
    }
    for key, pattern in wanted.items():
        require(re.fullmatch(pattern, found[key]) is not None, f"{key}: {found[key]}")
    set_ = {key: value for key, value in found["environment"].items() if key != HEXAGON}
    require(set_ == {"ORT_DISABLE_TELEMETRY": "1 true"}, f"the environment got {set_}")


def check_telemetry(folder: Path) -> None:
    """Hold that telemetry is off before the first class of onnxruntime loads."""
    loaded = re.findall(r"\] (\S+) source:", (folder / "classes.log").read_text())
    first = next(n for n, name in enumerate(loaded) if name.startswith("ai.onnxruntime."))
    off = loaded.index("android.system.FirstSetenv")
    require(off < first, f"{loaded[first]} is loaded before telemetry is off")


def changed(work: Path) -> str:
    """Change a bundle in many ways, and look at what is said, or that it is taken."""
    subject = subjects()[PASSED_OVER.name]
    for name, (change, wanted) in _CHANGES.items():
        here = work / name
        shutil.copytree(subject.bundle.path, here / "bundle")
        change(here / "bundle")
        if name not in _DAMAGES:
            seal(here / "bundle")
        found, folder = run(subject, here, here / "bundle")
        said = found["alone"][-1]
        require(re.fullmatch(wanted, said, re.DOTALL) is not None, f"{name}: {said!r}")
        left = [path.name for path in (folder / "cache").rglob("*") if _is_left_over(path)]
        require(not left, f"{name}: {left} are left in the cache")
    return ", ".join(_CHANGES)


def other_priors(work: Path) -> str:
    """Have a bundle hold other priors than the model has boxes for, or none."""
    subject = subjects()[FACES.name]
    for number, (text, wanted) in enumerate(OTHER_PRIORS.items()):
        here = work / str(number)
        shutil.copytree(subject.bundle.path, here / "bundle")
        (here / "bundle" / "files" / "priors.txt").write_text(text)
        seal(here / "bundle")
        found, _ = run(subject, here, here / "bundle")
        said = found["alone"][-1]
        require(said == f"ModelException: the bundle is damaged: {wanted}", said)
    return f"{len(OTHER_PRIORS)} files"


def _is_left_over(path: Path) -> bool:
    """Tell whether a path in the cache is of no use once the model is open, or is not."""
    return path.name.startswith("profile") or path.suffix == ".part"


def _cpu(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Return what changes the last variant's entry of a bundle's manifest."""

    def apply(bundle: Path) -> None:
        manifest = json.loads((bundle / "manifest.json").read_text())
        change(manifest["variants"][-1])
        (bundle / "manifest.json").write_text(json.dumps(manifest))

    return apply


def _golden(bundle: Path) -> Path:
    [golden] = json.loads((bundle / "manifest.json").read_text())["goldens"]
    return bundle / str(golden["outputs"]["cpu-fp32"][0]["path"])


def _model(bundle: Path) -> Path:
    manifest = json.loads((bundle / "manifest.json").read_text())
    return bundle / str(manifest["variants"][-1]["model"])


def _other_golden(bundle: Path) -> None:
    path = _golden(bundle)
    path.write_bytes((-np.fromfile(path, np.float32)).tobytes())


def _kept_golden(factor: float) -> Callable[[Path], None]:
    """Return what leaves some of a golden output's values, and makes it ask for much more."""

    def apply(bundle: Path) -> None:
        manifest = json.loads((bundle / "manifest.json").read_text())
        [tensor] = manifest["goldens"][0]["outputs"][manifest["variants"][-1]["id"]]
        values = factor * np.fromfile(bundle / tensor["path"], np.float32)[::3]
        values.astype(np.float32).tofile(bundle / tensor["path"])
        tensor.update(stride=3, extra_db=45.0)
        (bundle / "manifest.json").write_text(json.dumps(manifest))

    return apply


def _quantity_golden(factor: float) -> Callable[[Path], None]:
    """Return what makes two quantities of a golden output, and the second one ask for much more."""

    def apply(bundle: Path) -> None:
        manifest = json.loads((bundle / "manifest.json").read_text())
        [tensor] = manifest["goldens"][0]["outputs"][manifest["variants"][-1]["id"]]
        halves = np.fromfile(bundle / tensor["path"], np.float32).reshape(2, -1)
        halves[1] *= factor
        halves.tofile(bundle / tensor["path"])
        several = {"size": halves.shape[1], "runs": [[1, 0], [1, 1]], "extra_db": [0.0, 45.0]}
        tensor.update(quantities=several)
        (bundle / "manifest.json").write_text(json.dumps(manifest))

    return apply


def _short_golden(bundle: Path) -> None:
    path = _golden(bundle)
    path.write_bytes(path.read_bytes()[:-4])


def _profiled_other_golden(bundle: Path) -> None:
    _other_golden(bundle)
    _cpu(lambda entry: entry.update(placement=1.0))(bundle)


def _profiled_broken_model(bundle: Path) -> None:
    _model(bundle).write_bytes(b"model")
    _cpu(lambda entry: entry.update(placement=1.0))(bundle)


def _no_weights(bundle: Path) -> None:
    outside_weights(bundle)
    (bundle / "models" / "all.data").unlink()


def outside_weights(bundle: Path) -> None:
    """Have all weights lie in a file beside the models, and name one more, which none has."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    entries = [each for v in manifest["variants"] for each in v["buckets"] or [v]]
    for path in {bundle / entry["model"] for entry in entries}:
        model = onnx.load(str(path))
        (path.parent / "all.data").unlink(missing_ok=True)
        onnx.save(
            model, str(path), save_as_external_data=True, location="all.data", size_threshold=64
        )
    (bundle / "models" / "none.data").write_bytes(b"none")
    seal(bundle)


_NONE = r"ModelException: no variant of passed-over works on this device:\n  cpu-fp32: "
_CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "other golden": (
        _other_golden,
        rf"{_NONE}its output is -6\.0 dB near .*, \d+\.\d dB are needed",
    ),
    "some of a golden": (_kept_golden(1), "cpu-fp32"),
    "some of another golden": (_kept_golden(1.01), rf"{_NONE}its output is -4\.9 dB near .*"),
    "quantities of a golden": (_quantity_golden(1), "cpu-fp32"),
    "a quantity of another golden": (
        _quantity_golden(1.01),
        rf"{_NONE}its output is -4\.9 dB near .*",
    ),
    "few labels": (
        lambda bundle: (bundle / "files" / "labels.txt").write_text("ant\nbee\n"),
        r"ModelException: .*/labels\.txt has 2 labels, the output 'scores' 4 classes",
    ),
    "short golden": (_short_golden, r"ModelException: the bundle is damaged: golden/0/.*"),
    "no model": (
        lambda bundle: _model(bundle).unlink(),
        r"ModelException: the bundle is not whole: .*-fp32\.onnx.*",
    ),
    "no model listed": (
        lambda bundle: _model(bundle).unlink(),
        r"ModelException: the bundle is damaged: manifest\.json does not list .*-fp32\.onnx.*",
    ),
    "broken model": (
        lambda bundle: _model(bundle).write_bytes(b"model"),
        rf"{_NONE}the session cannot be created: .*",
    ),
    "other time": (
        lambda bundle: (bundle / "manifest.json").write_text('{"schema_version": 2}'),
        r"ModelException: manifest\.json has schema version 2, this code reads 1",
    ),
    "no manifest": (
        lambda bundle: (bundle / "manifest.json").write_text("{"),
        r"ModelException: the bundle is damaged: manifest\.json: .*",
    ),
    "other processor": (
        _cpu(lambda entry: entry["requires"]["cpu"].append("sve9")),
        rf"{_NONE}this CPU lacks sve9",
    ),
    "large share": (
        _cpu(lambda entry: entry.update(placement=1.5)),
        rf"{_NONE}CPUExecutionProvider runs 100% of the nodes, at least 150% are needed",
    ),
    "share": (_cpu(lambda entry: entry.update(placement=1.0)), "cpu-fp32"),
    "other golden, profiled": (_profiled_other_golden, rf"{_NONE}its output is -6\.0 dB near .*"),
    "broken model, profiled": (_profiled_broken_model, rf"{_NONE}the session cannot be .*"),
    "no weights": (_no_weights, r"ModelException: the bundle is not whole: .*/all\.data.*"),
    "cache": (
        _cpu(
            lambda entry: entry["session"]["config"].update({"ep.context_file_path": "{cache}/x"})
        ),
        "cpu-fp32",
    ),
}

_DAMAGES = ("no model", "no weights", "other time", "no manifest")
"""Those whose manifest does not list the files as they are."""


def compressed(work: Path) -> str:
    """Run a bundle whose models an app compresses, so that they cannot be mapped."""
    subject = subjects()[HALF.name]
    found, _ = run(subject, work, stored=())
    require(bool(found["passed"]), f"the self-test failed: {found['decibels']}")
    return "read into memory"


def outside(work: Path) -> str:
    """Run a bundle with two models whose weights are in one file beside them."""
    subject = subjects()[BUCKETS.name]
    shutil.copytree(subject.bundle.path, work / "bundle")
    outside_weights(work / "bundle")
    found, folder = run(subject, work, work / "bundle")
    require(found["alone"] == ["cpu-fp32"], f"{found['alone']}")
    require(bool(found["passed"]), f"the self-test failed: {found['decibels']}")
    copies = sorted(path.name for path in (folder / "cache").glob("**/models/*"))
    wanted = ["all.data", "cpu-fp32.4.onnx", "cpu-fp32.8.onnx"]
    require(copies == wanted, f"copied are {copies}, not {wanted}")
    return ", ".join(copies)


def settings(work: Path) -> str:
    """Open a variant whose session has no option that is the default."""
    subject = subjects()[PAIR.name]
    shutil.copytree(subject.bundle.path, work / "bundle")
    set_all(work / "bundle", "cpu-fp32")
    found, folder = run(subject, work, work / "bundle")
    require(bool(found["passed"]), f"the self-test failed: {found['decibels']}")
    return require_all((folder / "stderr.txt").read_text())


def plugin(work: Path) -> str:
    """Open a bundle three times where QNN's plugin loads and lists no device, as on most phones."""
    subject = subjects()[PASSED_OVER.name]
    bundle = work / "bundle"
    shutil.copytree(subject.bundle.path, bundle)
    manifest = (bundle / "manifest.json").read_text()
    (bundle / "manifest.json").write_text(manifest.replace("NnapiExecution", "QNNExecution"))
    libraries = _libraries_with_plugin(work / "libraries")
    found, _ = run(subject, work, bundle, options=(f"-Donnxruntime.native.path={libraries}",))
    reason = "QNNExecutionProvider is in the plugin libonnxruntime_providers_qnn.so, which lists no"
    said = [found["alone"][0], *(why for _, why in found["passedOver"])]
    for each in said:
        require(reason in each, each)
    return f"{len(said)} times: {reason} device here"


def _libraries_with_plugin(folder: Path) -> Path:
    """Unpack onnxruntime's libraries beside a plugin that has no providers."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise ToolError("there is no C compiler on PATH", hint="install gcc or clang")
    [package] = [jar for jar in jars(ORT) if jar.name.startswith("onnxruntime")]
    kind = {"x86_64": "x64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    folder.mkdir()
    with zipfile.ZipFile(package) as archive:
        for name in archive.namelist():
            if fnmatch(name, f"*/linux-{kind}/*.so"):
                (folder / Path(name).name).write_bytes(archive.read(name))
    (folder / "plugin.c").write_text(_PLUGIN)
    argv = [compiler, "-shared", "-fPIC", "-o", "libonnxruntime_providers_qnn.so", "plugin.c"]
    done = run_tool(argv, timeout_s=60, cwd=folder)
    require(done.exit_code == 0, f"the plugin does not compile{done.last_lines}")
    return folder


_PLUGIN = """\
#include <stddef.h>
void *CreateEpFactories(const char *name, const void *api, const void *logger, void **factories,
                        size_t most, size_t *count) {
    (void)name, (void)api, (void)logger, (void)factories, (void)most;
    *count = 0;
    return NULL;
}
void *ReleaseEpFactory(void *factory) {
    (void)factory;
    return NULL;
}
"""
"""What onnxruntime looks up in a plugin (onnxruntime_ep_c_api.h)."""


def no_libraries(work: Path) -> str:
    """Open a bundle where onnxruntime's libraries are missing, as for an ABI an app left out."""
    subject = subjects()[PASSED_OVER.name]
    found, _ = run(subject, work, options=(f"-Donnxruntime.native.path={work}",))
    # Java tells why a class did not load the first time alone.
    why = ("Native library .* not found at .*", ".*Failed to load onnx-runtime library.*")
    for wanted, said in zip(why, found["alone"], strict=True):
        pattern = f"ModelException: onnxruntime does not load: {wanted}"
        require(re.fullmatch(pattern, said) is not None, said)
    return "each time a ModelException"


PROOFS = (
    *(Proof(f"a bundle in Kotlin: {s.name}", prove(s)) for s in SIGNATURES),
    Proof("what a changed bundle says", changed),
    Proof("what other priors than the model's say", other_priors),
    Proof("compressed assets", compressed),
    Proof("weights in a file of their own", outside),
    Proof("settings of a session", settings),
    Proof("a plugin that lists no device", plugin),
    Proof("onnxruntime without libraries", no_libraries),
)
