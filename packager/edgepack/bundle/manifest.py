"""``manifest.json``: what a bundle holds, and what was proven about it.

The device-side loader reads the same file with nothing but ``json``; names here are its contract.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from edgepack.base.schema import Id, NotMeasured, StrictModel
from edgepack.bundle.paths import BundlePath, require_apart
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
from edgepack.project.project import (
    ConstantValue,
    InputDescription,
    OutputDescription,
    Preprocess,
    ProjectName,
    ProjectVersion,
)

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
    """Which channels of an output are compared by themselves: boxes in pixels, and their scores."""

    size: Annotated[int, Field(ge=1)]
    """How many values of a channel lie behind each other, in C order; then the next channel's
    come, and after the last one's the first one's again."""
    runs: list[Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=2, max_length=2)]]
    """How many channels in a row are of which quantity."""
    extra_db: list[float]
    """By quantity: how much more than the variant's ``min_sqnr_db`` it must reach, or less."""


class GoldenTensor(StrictModel):
    """One raw little-endian C-ordered tensor file."""

    name: str
    path: str
    """Relative to the bundle, with forward slashes."""
    dtype: Dtype
    shape: list[Annotated[int, Field(ge=0)]]
    """The model's: of an output with a ``stride`` the file has fewer values."""
    stride: Annotated[int, Field(ge=1, exclude_if=lambda stride: stride == 1)] = 1
    """Of an output: only every so many-th of its values, in C order from the first on, is in the
    file and compared."""
    extra_db: Annotated[float, Field(ge=0, exclude_if=lambda extra: extra == 0)] = 0.0
    """Of an output: how much more than the variant's ``min_sqnr_db`` it must reach, because it
    varies little over samples for its size."""
    quantities: Annotated[
        GoldenQuantities | None, Field(exclude_if=lambda quantities: quantities is None)
    ] = None
    """Of an output that holds several, each of which must be near."""


class Golden(StrictModel):
    """One sample: its inputs, and the outputs that each variant gave on the build host's CPU."""

    inputs: list[GoldenTensor]
    outputs: dict[str, list[GoldenTensor]]
    """By variant id."""


class Closeness(StrictModel):
    """How far a variant's outputs are from fp32's, in the worst output."""

    output: str
    cosine: float
    sqnr_db: float
    """Over the worst group of channels of similar range; 200 stands for equal."""


class R2(StrictModel):
    """The coefficient of determination of an output over the evaluation samples.

    fp32's is the truth, element by element, and of quantities as far apart as pixels and scores the
    worst counts: 1 is its own, 0 is the best constant's, and less is worse than a constant.
    """

    value: float
    low: float
    """Of the 95 % interval."""
    high: float


class OutputAccuracy(StrictModel):
    """How near a variant's answers in one output are to fp32's, by the metric of its kind."""

    metric: str
    """``agreement``, ``decisions``, ``f1@0.5``, ``iou``, ``neighbours``, ``r2``, ``signal``,
    ``tokens`` or ``equal``: docs/evaluating.md."""
    value: float
    """1 is fp32's own."""
    interval: tuple[float, float] | None
    """At 95 %; None of a single sample."""
    others: dict[str, float] = {}
    """Second figures, by name."""


class MetricValue(StrictModel):
    """One of several values that the project's metric function returned."""

    value: float
    fp32: float | None
    """None where there is no fp32 model."""


class Drift(StrictModel):
    """How a variant's errors grow along streams, where its own state is fed back to it.

    Of the output where they grow most: R² over the first and over the last quarter of each stream,
    with one variance for both.
    """

    output: str
    first: float
    last: float

    @property
    def grows(self) -> bool:
        """Whether the errors' energy becomes more than four times as large, and that is seen."""
        return 1 - self.last > 4 * (1 - self.first) and self.first - self.last > 0.01


class Accuracy(StrictModel):
    """What the evaluation on the build host's CPU found for one variant."""

    metric: str
    """That of the labels, as ``top1``, the hook's name, that of the value that decides where the
    hook returns several, or that of the ``output``'s."""
    output: str = ""
    """The output that the metric is of, the worst one; nothing with labels or a hook."""
    higher_is_better: bool
    samples: int
    fp32: float | NotMeasured
    """Not measured where the model came quantized or float16: there is no fp32 model of it. Nothing
    is compared with fp32 then, and what follows ``value`` is None."""
    value: float
    drop: float | None
    """How much worse than fp32, in the metric's unit; negative is better."""
    drop_interval: tuple[float, float] | None
    """Paired 95 % interval of the drop; None where the metric has no value per sample."""
    agreement: float | None
    """Share of samples with the same top-1 as fp32; None where outputs are not class scores."""
    worst: Closeness | None
    outputs: dict[str, OutputAccuracy | NotMeasured] = {}
    """By output; not measured where the samples tell nothing of it."""
    r2: dict[str, R2] = {}
    """By output of floats; those that tell nothing of the samples are left out."""
    says_nothing: str = ""
    """Why the variant is no better than a constant; nothing where it is."""
    says_little: Annotated[str, Field(exclude_if=lambda said: not said)] = ""
    """Which output says less than half of what fp32's says; such a variant is shipped only where it
    was named."""
    values: dict[str, MetricValue] = {}
    """All that the hook or the labels' metric gives, where it is several values; ``metric`` is one
    of them."""
    drift: Annotated[Drift | None, Field(exclude_if=lambda given: given is None)] = None
    """Of a model that is fed its own state, judged over streams of 8 frames or more."""

    @property
    def others(self) -> dict[str, MetricValue]:
        """The values beside the one that decides."""
        return {name: each for name, each in self.values.items() if name != self.metric}


class Predicted(StrictModel):
    """Where nodes are predicted to run; a device's report says where they did."""

    provider: str
    share: float
    """The part of the nodes that the provider takes, 0 to 1."""
    nodes: int
    partitions: int
    """Pieces of the graph that the provider gets at once."""


class Fused(StrictModel):
    """What onnxruntime's optimizer makes of a quantized model on the target's kind of CPU."""

    coverage: float
    """The part of the kernels, 0 to 1, that run on integers where they could."""
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
    """Over all values and some samples; 200 stands for equal, -200 for no signal at all."""


class OutsideError(StrictModel):
    """An output that is farther from fp32's on a kind of input that no sample shows."""

    input: str
    """``silence``, ``black``, ``white``, ``times 0.25``, ``times 2``, ``shifted``, ``noise``,
    ``clipped``, ``saturated``, ``shortest`` or ``longest``: docs/evaluating.md."""
    output: str
    error: float
    """Root mean square, in what fp32's output deviates by over the samples; 1e9 stands for outputs
    that are no numbers."""
    plain: float
    """The same of the samples."""


class Attempt(StrictModel):
    """One thing that was tried so that an int8 model is as near to fp32 as can be."""

    what: str
    stage: Literal["activations", "model", "limit"]
    """What is judged: ``activations`` in integers with exact weights, on held-out calibration
    samples; the whole ``model`` in integers, on the same; or that on the evaluation samples, for
    the project's ``limit``. Figures of two stages are of different things."""
    kept: bool
    """The last of ``model`` and ``limit`` that is kept is what is shipped."""
    why: str
    """Why it was kept or not."""
    sqnr_db: float | None
    """Of the worst group of channels of the worst output; 200 stands for equal."""
    agreement: float | None
    """Share of samples with fp32's best class; None where there are no classes."""
    metric_drop: float | None
    """How much worse than fp32's the metric is, in its unit; of ``limit`` only."""


class Bucket(StrictModel):
    """The model for one size of each symbolic dimension."""

    dims: dict[str, Annotated[int, Field(gt=0)]]
    """By name as the manifest's ``inputs`` have it, the size that is fixed."""
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
    """Of the file, and of its external data where it has any."""
    model_format: Literal["onnx"] | OrtFormat = "onnx"
    """Of all the variant's model files; an ``.ort`` file is written for one kind of processor."""
    buckets: list[Bucket] = []
    """Models with static shapes, smallest first; the last is ``model``. The loader takes the first
    that holds the inputs, pads them at the end (``input_descriptions``), and cuts the outputs.
    Empty where one model takes all sizes."""
    slices: list[Slice] = []
    exact: bool = False
    """Whether the buckets' sizes alone are taken, because padding would change the outputs."""
    providers: Annotated[list[Provider], Field(min_length=1)]
    placement: Literal["all"] | float
    session: SessionSettings
    requires: Requires
    min_sqnr_db: float
    """What the golden outputs must reach on the device, less each one's ``extra_db``."""
    untold: Annotated[list[str], Field(exclude_if=lambda untold: not untold)] = []
    """What the bundle's goldens do not tell: changes of the model that change its outputs, while
    the golden ones stay as near as they must be. Of those that the build tried."""
    accuracy: Accuracy | NotMeasured
    predicted: Predicted | None = None
    """None for the CPU, which takes every node."""
    fused: Fused | None = None
    """None unless the CPU runs int8."""
    layers: list[LayerError] | NotMeasured = []
    """In the order of the graph; empty unless int8-static was made from a float model."""
    outside: list[OutsideError] | NotMeasured = []
    """What inputs unlike the samples break, the farthest first; empty where nothing was found, and
    where there are no samples, or the variant was not made int8 here."""
    input_ranges: dict[str, tuple[float, float]] = {}
    """By input of floats, the smallest and the largest value that int8-static was calibrated with;
    empty unless it was made of a float model."""
    tried: list[Attempt] = []
    """In the order in which it was tried; empty unless int8-static was made from a float model."""


class LeftOut(StrictModel):
    """A variant of the profile that is not in the bundle, and why."""

    variant: str
    reason: str


class SourceModel(StrictModel):
    """The model that the bundle was made from."""

    name: str
    sha256: str
    opset: int
    ir_version: int


class BuildHost(StrictModel):
    """What the golden outputs and accuracy figures were computed with."""

    os: str
    processor: str
    """``x86-64``, ``x86-64-vnni`` or ``aarch64``: what decides the bits of int8 kernels."""
    tools: dict[str, str]
    """Versions of Python and the libraries that decide the bytes."""


class SamplesUsed(StrictModel):
    """A set of samples that a bundle's variants were made or judged with."""

    samples: Annotated[int, Field(gt=0)]
    sha256: str
    """Of JSON that has the sha256 of each of the set's files by name, sorted: an index, the arrays
    as the model takes them, and the labels."""


class Provenance(StrictModel):
    """What the bundle was made from, beside its model and tools."""

    profile_sha256: str
    """Of the target's profile with the project's changes, as JSON with sorted keys."""
    calibration: SamplesUsed | None
    """None where no variant is calibrated."""
    evaluation: SamplesUsed | None
    """None where nothing was evaluated."""


class BundleFile(StrictModel):
    """One file of the bundle; those of ``UNLISTED`` are not listed."""

    path: BundlePath
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    size_bytes: Annotated[int, Field(ge=0)]
    mode: Literal["644", "755"]
    role: Literal["model", "golden", "file", "loader", "harness", "document", "pins", "source"]


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
    left_out: list[LeftOut]
    goldens: Annotated[list[Golden], Field(min_length=1)]
    goldens_from: Literal["samples", "seeded random"]
    runtime: dict[str, str]
    """Package name to pin."""
    provider_sources: dict[str, ProviderSource] = {}
    """For execution providers that those packages do not hold: where they come from."""
    built_on: BuildHost
    steps: list[str]
    """What was done to the model, a line each, in order."""
    plan_digest: str
    provenance: Provenance | None = None
    """None in bundles that were built before it was recorded."""
    files: list[BundleFile]

    @property
    def id(self) -> str:
        """The bundle's directory name."""
        return f"{self.name}-{self.version}-{self.target}"

    @property
    def samples(self) -> frozenset[str]:
        """The inputs that take one picture or text, as the model holds what is done to it."""
        described = self.input_descriptions.items()
        texts = "tokenize" in self.preprocess.extensions
        return frozenset(
            name
            for name, d in described
            if (d.image and self.preprocess.in_graph) or (d.tokens and texts)
        )

    @model_validator(mode="after")
    def _files_are_apart(self) -> Self:
        require_apart([*UNLISTED, *(file.path for file in self.files)])
        return self

    @model_validator(mode="after")
    def _every_path_is_a_file(self) -> Self:
        known = {file.path for file in self.files}
        named = [variant.model for variant in self.variants]
        named += [bucket.model for variant in self.variants for bucket in variant.buckets]
        for golden in self.goldens:
            for tensors in (golden.inputs, *golden.outputs.values()):
                named += [tensor.path for tensor in tensors]
        for path in named:
            if path not in known:
                raise ValueError(f"{path!r} is used and is not one of the bundle's files")
        return self

    @model_validator(mode="after")
    def _every_variant_has_goldens(self) -> Self:
        for golden in self.goldens:
            if set(golden.outputs) != {variant.id for variant in self.variants}:
                raise ValueError("a golden sample has not exactly one output for each variant")
        return self
