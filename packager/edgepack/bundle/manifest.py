"""``manifest.json``: what is in a bundle, and what was proven about it.

The device-side loader reads the same file with only ``json``, and relies on these names.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from edgepack.base.schema import Id, NotMeasured, StrictModel
from edgepack.bundle.paths import BundlePath, require_apart
from edgepack.bundle.unused import Unused
from edgepack.project.inputs import InputDescription, Preprocess
from edgepack.project.names import ProjectName, ProjectVersion
from edgepack.project.outputs import OutputDescription
from edgepack.project.profile import (
    Dialect,
    Family,
    OrtFormat,
    Provider,
    ProviderSource,
    Recipe,
    Requires,
    SessionSettings,
)
from edgepack.project.project import ConstantValue

MANIFEST = "manifest.json"
MANIFEST_DIGEST = "manifest.json.sha256"
MANIFEST_SIGNATURE = "manifest.json.sig"
"""Written by ``edgepack sign``; only a signed bundle has it."""
UNLISTED = (MANIFEST, MANIFEST_DIGEST, MANIFEST_SIGNATURE)
"""The files of a bundle that its manifest cannot list."""
SCHEMA_VERSION = 1


Dtype = Annotated[str, Field(pattern=r"^(bool|(float(16|32|64)|u?int(8|16|32|64)))$")]
"""A numpy dtype name: ``float32``, ``int64``, ``bool``."""


class Tensor(StrictModel):
    """One input or output of the model."""

    name: str
    dtype: Dtype
    shape: list[int | str]
    """An int where fixed, a name where symbolic, ``?`` where unknown."""


class GoldenQuantities(StrictModel):
    """The channels of an output that are compared separately: boxes in pixels, and their scores."""

    size: Annotated[int, Field(ge=1)]
    """How many values of one channel follow each other in C order, before those of the next
    channel; after the last channel the first one begins again."""
    runs: list[Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=2, max_length=2)]]
    """Runs of channels: how many in a row have which quantity."""
    extra_db: list[float]
    """By quantity: the decibels by which it must exceed the variant's ``min_sqnr_db``; negative if
    it may stay below."""


class Palette(StrictModel):
    """How a file holds a tensor whose channels have at most 256 different values each.

    The file begins with these values, channel after channel; then there is a byte for each place in
    C order, which says which of its channel's values is there. Nothing is rounded.
    """

    step: Annotated[int, Field(ge=1)]
    """How many values of one channel follow each other in C order, before those of the next."""
    sizes: Annotated[list[Annotated[int, Field(ge=1, le=256)]], Field(min_length=1)]
    """By channel: how many different values it has."""


class GoldenTensor(StrictModel):
    """One little-endian C-ordered tensor file, raw where it has no palette."""

    name: str
    path: str
    """Relative to the bundle, with forward slashes."""
    dtype: Dtype
    shape: list[Annotated[int, Field(ge=0)]]
    """The model's: of an output with a ``stride`` the file has fewer values."""
    stride: Annotated[int, Field(ge=1, exclude_if=lambda stride: stride == 1)] = 1
    """Of an output: the step between the values that are in the file and compared, in C order from
    the first value on."""
    extra_db: Annotated[float, Field(ge=0, exclude_if=lambda extra: extra == 0)] = 0.0
    """Of an output: the decibels by which it must exceed the variant's ``min_sqnr_db``, because it
    varies little over samples for its size."""
    quantities: Annotated[
        GoldenQuantities | None, Field(exclude_if=lambda quantities: quantities is None)
    ] = None
    """Of an output with several quantities: each of them must be near."""
    palette: Annotated[Palette | None, Field(exclude_if=lambda palette: palette is None)] = None
    """Of an input, in bundles for apps: a picture's file is about a fourth with it."""


class Golden(StrictModel):
    """One sample: its inputs, and the outputs that each variant gave on the build host's CPU."""

    inputs: list[GoldenTensor]
    outputs: dict[str, list[GoldenTensor]]
    """The expected outputs by variant id."""


class Closeness(StrictModel):
    """How far a variant's outputs are from fp32's, in the worst output."""

    output: str
    cosine: float
    sqnr_db: float
    """Over the worst group of channels of similar range; 200 stands for equal."""


class R2(StrictModel):
    """The coefficient of determination of an output over the evaluation samples.

    fp32's output is the truth, element by element. Where an output has quantities as different as
    pixels and scores, the worst counts. 1 is fp32's own value, 0 is the best constant's, and less
    is worse than a constant.
    """

    value: float
    low: float
    """The lower end of the 95 % interval."""
    high: float


class OutputAccuracy(StrictModel):
    """How near a variant's answers in one output are to fp32's, by its kind's metric."""

    metric: str
    """``agreement``, ``decisions``, ``f1@0.5``, ``iou``, ``neighbours``, ``r2``, ``signal``,
    ``tokens`` or ``equal``: docs/evaluating.md."""
    value: float
    """1 is fp32's own."""
    interval: tuple[float, float] | None
    """The 95 % interval; None for a single sample."""
    others: dict[str, float] = {}
    """Second figures, by name."""


class MetricValue(StrictModel):
    """One of several values that the project's metric function returned."""

    value: float
    fp32: float | None
    """None where there is no fp32 model."""


class Drift(StrictModel):
    """How a variant's errors grow along streams, where its own state is fed back to it.

    It is taken from the output where they grow most: R² over the first and over the last quarter of
    each stream, with one variance for both.
    """

    output: str
    first: float
    last: float

    @property
    def grows(self) -> bool:
        """Whether the errors' energy becomes more than four times as large, and visibly so."""
        return 1 - self.last > 4 * (1 - self.first) and self.first - self.last > 0.01


class Accuracy(StrictModel):
    """What the evaluation on the build host's CPU found for one variant."""

    metric: str
    """The metric's name: that of the labels, such as ``top1``; the hook's, or that of the deciding
    value where the hook returns several; or that of the ``output``'s metric."""
    output: str = ""
    """The output that the metric is measured on, the worst one; empty with labels or a hook."""
    higher_is_better: bool
    samples: int
    fp32: float | NotMeasured
    """Not measured where the model came quantized or float16, because it has no fp32 model. Nothing
    is compared with fp32 then, and the fields after ``value`` are None."""
    value: float
    drop: float | None
    """How much worse than fp32, in the metric's unit; negative is better."""
    drop_interval: tuple[float, float] | None
    """Paired 95 % interval of the drop; None where the metric has no value per sample."""
    agreement: float | None
    """Share of samples with the same top-1 as fp32; None where outputs are not class scores."""
    worst: Closeness | None
    outputs: dict[str, OutputAccuracy | NotMeasured] = {}
    """Accuracy by output; not measured where the samples show nothing about it."""
    r2: dict[str, R2] = {}
    """R² by output of floats; outputs that do not vary over the samples are left out."""
    says_nothing: str = ""
    """Why the variant is no better than a constant; empty where it is better."""
    says_little: Annotated[str, Field(exclude_if=lambda said: not said)] = ""
    """The output that explains less than half of fp32's variance; such a variant ships only where
    the user named it."""
    values: dict[str, MetricValue] = {}
    """All values of the hook or the labels' metric, where there are several; ``metric`` is one of
    them."""
    drift: Annotated[Drift | None, Field(exclude_if=lambda given: given is None)] = None
    """The drift of a model that is fed its own state, measured over streams of 8 frames or more."""

    @property
    def others(self) -> dict[str, MetricValue]:
        """The values beside the one that decides."""
        return {name: each for name, each in self.values.items() if name != self.metric}


class Predicted(StrictModel):
    """Where nodes are predicted to run; a device's report says where they really ran."""

    provider: str
    share: float
    """The part of the nodes that the provider takes, 0 to 1."""
    nodes: int
    partitions: int
    """Pieces of the graph that the provider gets at once."""


class Simulated(StrictModel):
    """What a variant did in the vendor's simulator of its provider's hardware, on the build host.

    A simulator tells nodes and outputs. It tells nothing of latency, power, memory and drivers.
    """

    simulator: str
    """The package with it, and its version."""
    nodes: dict[str, int]
    """How many nodes were on each execution provider."""
    golden_sqnr_db: float
    """How near the golden outputs were, in the worst output, as a device's loader counts it."""
    accuracy: Accuracy | NotMeasured | None
    """Of as many evaluation samples as the build's budget allowed, computed by the simulator; None
    where the project has none. Where there are 100 or all, this decides whether it ships."""

    def share(self, provider: str) -> float:
        """Return the part of the nodes that were on a provider, 0 to 1."""
        return self.nodes.get(provider, 0) / max(1, sum(self.nodes.values()))

    def __str__(self) -> str:
        places = ", ".join(f"{count} nodes on {name}" for name, count in sorted(self.nodes.items()))
        text = f"{self.simulator}: {places}; golden outputs {self.golden_sqnr_db:g} dB"
        if isinstance(self.accuracy, Accuracy):
            found = self.accuracy
            return f"{text}; {found.metric} {found.value:.4f} on {found.samples} samples"
        if self.accuracy is not None:
            return f"{text}; accuracy was not measured there: {self.accuracy.reason}"
        return text


LEAST_SIMULATED = 100
"""The fewest samples in a simulator that decide in the place of all samples on the CPU."""


def find_decisive(
    on_cpu: Accuracy | NotMeasured, simulated: Simulated | NotMeasured | None
) -> Accuracy | NotMeasured:
    """Return the accuracy that decides: the simulator's, if it had enough samples.

    What the CPU computes of an integer model is not what the provider computes.
    """
    if isinstance(simulated, Simulated) and isinstance(simulated.accuracy, Accuracy):
        every = on_cpu.samples if isinstance(on_cpu, Accuracy) else 0
        if simulated.accuracy.samples >= min(LEAST_SIMULATED, every):
            return simulated.accuracy
    return on_cpu


class CompiledModel(StrictModel):
    """A variant's model as the provider's compiler made it during the build, for one hardware."""

    hardware: str
    """As the provider's ``option`` names it: ``73`` is an HTP of version 73."""
    option: str
    model: str
    """Path of the .onnx file, which has an EPContext node for each compiled piece."""
    model_sha256: str
    """The bytes of that file and of the one ``beside`` it."""
    beside: str
    """Path of the file with the compiled pieces."""
    source_sha256: str
    """The ``model_sha256`` of the model that it was compiled from."""
    compiler: str
    """The package with it, and its version."""
    sdk: str
    """The version of the vendor's SDK: a device with another one compiles the model itself."""


class Fused(StrictModel):
    """What onnxruntime's optimizer makes of a quantized model on the target's kind of CPU."""

    coverage: float
    """The share, 0 to 1, of the kernels that could run on integers and do."""
    leftover_quantize: int
    leftover_dequantize: int
    islands: list[str]
    """Float nodes between a DequantizeLinear and a QuantizeLinear."""


class LayerError(StrictModel):
    """How far one tensor of an int8 model is from the float model's."""

    node: str
    """The node of the float model that makes the tensor."""
    op: str
    sqnr_db: float
    """SQNR in dB over all values and some samples; 200 stands for equal, -200 for no signal at
    all."""


class OutsideError(StrictModel):
    """An output that is farther from fp32's on a kind of input that no sample shows."""

    input: str
    """``silence``, ``black``, ``white``, ``times 0.25``, ``times 2``, ``shifted``, ``noise``,
    ``clipped``, ``saturated``, ``shortest`` or ``longest``: docs/evaluating.md."""
    output: str
    error: float
    """Root mean square error, in units of the standard deviation of fp32's output over the samples;
    1e9 stands for outputs that are no numbers."""
    plain: float
    """The same error on the samples."""


class Attempt(StrictModel):
    """One attempt to bring an int8 model nearer to fp32."""

    what: str
    stage: Literal["activations", "model", "limit"]
    """What is measured: ``activations`` in integers with exact weights, on held-out calibration
    samples; the whole ``model`` in integers, on the same samples; or the whole model on the
    evaluation samples, for the project's ``limit``. Figures of different stages cannot be compared.
    """
    kept: bool
    """The last kept attempt of ``model`` and ``limit`` is the model that ships."""
    why: str
    """Why the attempt was kept or not."""
    sqnr_db: float | None
    """SQNR in dB of the worst group of channels of the worst output; 200 stands for equal."""
    agreement: float | None
    """Share of samples with fp32's best class; None where there are no classes."""
    metric_drop: float | None
    """How much worse than fp32's the metric is, in its unit; only for ``limit``."""


class Bucket(StrictModel):
    """The model for one size of each symbolic dimension."""

    dims: dict[str, Annotated[int, Field(gt=0)]]
    """The fixed size by dimension name, as in the manifest's ``inputs``."""
    model: str
    """Path of the model file in the bundle."""
    model_sha256: str


class Slice(StrictModel):
    """An axis of an output that is cut back to a symbolic dimension's actual size."""

    output: str
    axis: Annotated[int, Field(ge=0)]
    dim: str


class ManifestVariant(StrictModel):
    """One variant as shipped."""

    id: str
    backend: str
    recipe: Recipe
    dialect: Dialect | None = None
    """None unless the recipe quantizes."""
    model: str
    """Path of the model file in the bundle. Variants with the same bytes share a file."""
    model_sha256: str
    """The bytes of the file, and of its external data if it has any."""
    model_bytes: Annotated[int | None, Field(exclude_if=lambda size: size is None)] = None
    """The size of all model files with their weights; bundles of older versions do not say it."""
    model_format: Literal["onnx"] | OrtFormat = "onnx"
    """Of all model files of the variant; an ``.ort`` file is written for one kind of processor."""
    buckets: list[Bucket] = []
    """Models with static shapes, smallest first; the last is ``model``. The loader takes the first
    model that is large enough for the inputs, pads them at the end (``input_descriptions``), and
    cuts the outputs. Empty where one model takes all sizes."""
    slices: list[Slice] = []
    exact: bool = False
    """Whether only the buckets' own sizes are allowed, because padding would change the outputs."""
    providers: Annotated[list[Provider], Field(min_length=1)]
    placement: Literal["all"] | float
    session: SessionSettings
    requires: Requires
    min_sqnr_db: float
    """The SQNR that the golden outputs must reach on the device, without each one's
    ``extra_db``."""
    untold: Annotated[list[str], Field(exclude_if=lambda untold: not untold)] = []
    """What the bundle's goldens do not detect: changes of the model that change its outputs, while
    the golden outputs stay within the limit. These are among the changes that the build tried."""
    accuracy: Accuracy | NotMeasured
    predicted: Predicted | None = None
    """None for the CPU, which takes every node."""
    simulated: Annotated[
        Simulated | NotMeasured | None, Field(exclude_if=lambda given: given is None)
    ] = None
    """Not measured where there is a simulator, and it is not here or failed; None where no vendor
    has one."""
    compiled: Annotated[
        list[CompiledModel] | NotMeasured, Field(exclude_if=lambda given: given == [])
    ] = []
    """The loader tries these before ``model``, in this order. Empty where the profile names no
    hardware; not measured where the provider's compiler is not here or failed."""
    fused: Fused | None = None
    """None unless the CPU runs int8."""
    layers: list[LayerError] | NotMeasured = []
    """In the order of the graph; empty unless int8-static was made from a float model."""
    outside: list[OutsideError] | NotMeasured = []
    """The outputs that go wrong on inputs unlike the samples, the worst first. Empty where none was
    found, where there are no samples, or where edgepack did not make the variant int8."""
    input_ranges: dict[str, tuple[float, float]] = {}
    """By input of floats, the smallest and the largest value that int8-static was calibrated with;
    empty unless it was made of a float model."""
    tried: list[Attempt] = []
    """In the order in which it was tried; empty unless int8-static was made from a float model."""


class ComparedOutput(StrictModel):
    """How far one output of a converted model is from the framework's own."""

    name: str
    source: str
    """The framework's name of it."""
    farthest: float
    """The largest difference of any value on any sample; of integers and texts, how many differ."""
    sample: str
    """The sample that it was on."""
    largest: float
    """The framework's largest value over the samples, without its sign."""
    tolerance: float
    """How far a value may be."""


class ConvertedFrom(StrictModel):
    """What the ONNX model was converted from, and how that was proven."""

    format: str
    sha256: str
    """Of the file, or of the names and hashes of all files of the folder."""
    packages: dict[str, str]
    """The framework and its exporter, with their versions."""
    confined: str
    """What kept the process that read the file from everything else; empty where nothing did."""
    samples: int
    """How many inputs the framework and ONNX were compared on."""
    samples_from: Literal["samples", "seeded random"]
    outputs: list[ComparedOutput]


class SourceModel(StrictModel):
    """The model that the bundle was made from."""

    name: str
    sha256: str
    """Of the ONNX model."""
    opset: int
    ir_version: int
    converted_from: Annotated[
        ConvertedFrom | None, Field(exclude_if=lambda found: found is None)
    ] = None
    """None where the model came as ONNX."""
    reference: Annotated[list[ComparedOutput], Field(exclude_if=lambda found: not found)] = []
    """How far outputs are from those that the user gave as the framework's."""


class BuildHost(StrictModel):
    """The machine and versions with which golden outputs and accuracy figures were computed."""

    os: str
    processor: str
    """``x86-64``, ``x86-64-vnni`` or ``aarch64``: what decides the bits of int8 kernels."""
    tools: dict[str, str]
    """Versions of Python and the libraries that decide the bytes."""


class SamplesUsed(StrictModel):
    """A set of samples with which a bundle's variants were calibrated or evaluated."""

    samples: Annotated[int, Field(gt=0)]
    sha256: str
    """The sha256 of JSON with the sha256 of each file of the set by name, sorted: an index, the
    arrays as the model takes them, and the labels."""


class Provenance(StrictModel):
    """What the bundle was made from, in addition to its model and tools."""

    profile_sha256: str
    """The sha256 of the target's profile with the project's changes, as JSON with sorted keys."""
    calibration: SamplesUsed | None
    """None where no variant is calibrated."""
    evaluation: SamplesUsed | None
    """None where nothing was evaluated."""


Role = Literal[
    "model",
    "golden",
    "file",
    "loader",
    "harness",
    "service",
    "document",
    "pins",
    "source",
    "library",
]
"""What a file of a bundle is for."""


class BundleFile(StrictModel):
    """One file of the bundle; those of ``UNLISTED`` are not listed."""

    path: BundlePath
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    size_bytes: Annotated[int, Field(ge=0)]
    mode: Literal["644", "755"]
    role: Role


class Manifest(StrictModel):
    """The content of ``manifest.json``."""

    schema_version: Literal[1]
    name: ProjectName
    version: ProjectVersion
    target: Id
    family: Family
    model: SourceModel
    inputs: list[Tensor]
    outputs: list[Tensor]
    constants: Annotated[dict[str, ConstantValue], Field(exclude_if=lambda given: not given)] = {}
    """Inputs of the source model that the bundle's models hold instead of taking them.

    Written only where there are some."""
    state: Annotated[dict[str, str], Field(exclude_if=lambda given: not given)] = {}
    """Outputs, each with the input that it feeds in the next run; a stream begins with zeros.

    Written only where there are some."""
    custom_ops: Annotated[dict[str, BundlePath], Field(exclude_if=lambda given: not given)] = {}
    """The shared libraries that sessions register, by the kind of machine that they are for.

    Written only where there are some."""
    input_descriptions: dict[str, InputDescription]
    output_descriptions: dict[str, OutputDescription]
    preprocess: Annotated[Preprocess, Field(exclude_if=lambda given: given == Preprocess())] = (
        Preprocess()
    )
    """With ``in_graph``, inputs with ``image`` take pictures: uint8 ``(H, W, 3)``, RGB, or a file's
    bytes with ``decode_image``. With ``tokenize``, those with ``tokens`` take a text's bytes.

    Written only where it is not the default."""
    variants: Annotated[list[ManifestVariant], Field(min_length=1)]
    """In order of preference, best first."""
    unused: list[Unused]
    """The variants of the profile that are not in the bundle."""
    goldens: Annotated[list[Golden], Field(min_length=1)]
    goldens_from: Literal["samples", "seeded random"]
    runtime: dict[str, str]
    """Package name to pin."""
    provider_sources: dict[str, ProviderSource] = {}
    """For execution providers that are not in those packages: where to get them."""
    built_on: BuildHost
    steps: list[str]
    """The changes to the model in order, one line each."""
    plan_digest: str
    provenance: Provenance | None = None
    """None in bundles that older versions built without it."""
    files: list[BundleFile]

    @property
    def id(self) -> str:
        """The bundle's directory name."""
        return f"{self.name}-{self.version}-{self.target}"

    def count_model_bytes(self, variant: ManifestVariant) -> int:
        """Return the bytes of a variant's model files, with those of their weights.

        Of bundles of older versions, weights are counted as far as they have the variant's name.
        """
        if variant.model_bytes is not None:
            return variant.model_bytes
        sizes = {file.path: file.size_bytes for file in self.files}
        models = {variant.model, *(bucket.model for bucket in variant.buckets)}
        weights = sizes.get(f"models/{variant.id}.weights", 0)
        return sum(sizes[path] for path in models) + weights

    def find_variant(self, variant: str) -> ManifestVariant:
        """Return a variant by its id; the bundle must have it."""
        return next(each for each in self.variants if each.id == variant)

    @property
    def samples(self) -> frozenset[str]:
        """The inputs that take one picture or text, because the model does the preprocessing."""
        described = self.input_descriptions.items()
        texts = "tokenize" in self.preprocess.extensions
        return frozenset(
            name
            for name, d in described
            if (d.image and self.preprocess.in_graph) or (d.tokens and texts)
        )

    @model_validator(mode="after")
    def _check_apart(self) -> Self:
        require_apart([*UNLISTED, *(file.path for file in self.files)])
        return self

    @model_validator(mode="after")
    def _check_paths(self) -> Self:
        known = {file.path for file in self.files}
        named = [*self.custom_ops.values(), *(variant.model for variant in self.variants)]
        named += [bucket.model for variant in self.variants for bucket in variant.buckets]
        for variant in self.variants:
            for each in variant.compiled if isinstance(variant.compiled, list) else ():
                named += [each.model, each.beside]
        for golden in self.goldens:
            for tensors in (golden.inputs, *golden.outputs.values()):
                named += [tensor.path for tensor in tensors]
        for path in named:
            if path not in known:
                raise ValueError(f"{path!r} is used and is not one of the bundle's files")
        return self

    @model_validator(mode="after")
    def _check_goldens(self) -> Self:
        for golden in self.goldens:
            if set(golden.outputs) != {variant.id for variant in self.variants}:
                raise ValueError("a golden sample has not exactly one output for each variant")
        return self
