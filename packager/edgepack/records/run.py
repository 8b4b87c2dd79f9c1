"""``RunReport``: the record of one bundle measured on one device.

Everything raw is kept; what a table shows is computed from it. What could not be measured is
:class:`~edgepack.bundle.manifest.NotMeasured` with its reason, never None or 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from edgepack.base.schema import Id, NotMeasured, StrictModel
from edgepack.bundle.manifest import Accuracy, Attempt, LayerError, OutsideError, Simulated
from edgepack.bundle.unused import Unused
from edgepack.project.limits import Limits
from edgepack.project.profile import SessionSettings
from edgepack.records.topology import Topology

SCHEMA_VERSION: Literal[2] = 2

Count = Annotated[int, Field(ge=0)]
Ns = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(max_length=10_000)]
ReportId = Annotated[str, Field(pattern=r"^[0-9A-Za-z-]{1,64}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

PhaseNs = Annotated[list[Ns], Field(min_length=1)] | NotMeasured

ALL_VARIANTS = "all"
"""What is asked for instead of a variant, to have each that works."""
LOW_POWER = "low power"
"""The power mode of a phone that saves power."""
NO_BATTERY = NotMeasured(reason="the device has no battery, or does not report it")
TIMELESS = NotMeasured(reason="it took no time")
NOT_READ = NotMeasured(reason="no driver of a GPU was asked")
IN_HOST_MEMORY = NotMeasured(reason="it computes in the memory that the program has its tensors in")
NOT_ASKED = NotMeasured(reason="the edgepack that measured this did not time it")
NOT_CHECKED = NotMeasured(reason="the edgepack of the bundle, or that measured this, did not check")
NOT_JOINED = NotMeasured(reason="its samples ran one by one")


class Valid(StrictModel):
    """The numbers are what they say they are."""

    kind: Literal["valid"] = "valid"


Cause = Literal[
    "outputs",
    "stream",
    "placement",
    "supply",
    "settings",
    "queries",
    "work",
    "hidden",
    "conditions",
]
"""What has to be fixed before the numbers can be used; ``stream`` is a state that became NaN or
infinite, ``work`` is other work on the device, ``hidden`` is a browser's page that was not to be
seen, ``conditions`` is heat, or too few runs."""
HIDDEN = "the page was not to be seen"
"""A cause for which a browser's page is slowed down."""


class Invalid(StrictModel):
    """The numbers must not be used."""

    kind: Literal["invalid"] = "invalid"
    reasons: Annotated[list[str], Field(min_length=1)]
    cause: Cause = "conditions"
    """The cause of the reason that weighs most."""


class Inconclusive(StrictModel):
    """Nothing is wrong with the numbers, but there are too few to conclude anything."""

    kind: Literal["inconclusive"] = "inconclusive"
    reason: str


Verdict = Annotated[Valid | Invalid | Inconclusive, Field(discriminator="kind")]


class Conditions(StrictModel):
    """What decided the device's speed at one moment."""

    governor: Name | NotMeasured
    """The governors of all cores, joined by ``+`` where they differ."""
    temperature_c: float | NotMeasured
    """The temperature of the hottest thermal zone, in °C."""
    throttle_events: Count | NotMeasured
    """The number of events since boot, over all cores."""
    throttled_now: list[Name] | NotMeasured
    """Causes for which the device is slowed down now; empty if it runs at full speed."""
    throttled_since_boot: list[Name] | NotMeasured
    """Causes that occurred at any time since boot; they stay until the next one."""
    power_mode: Name | NotMeasured
    """As the device names it: ``MAXN`` of a Jetson, ``low power`` of a phone."""
    load: Annotated[float, Field(ge=0)] | NotMeasured
    """Processes that run or wait to, on average over the last minute."""
    battery_percent: Annotated[float, Field(ge=0, le=100)] | NotMeasured = NO_BATTERY
    """How full a phone's battery is."""


class Sample(StrictModel):
    """The sensors' values at one moment of a run. A sensor without a value is absent."""

    at_ns: Ns
    """By the clock of :attr:`ProcessRun.timed_from_ns`."""
    temperatures_c: dict[Name, float] = {}
    """By thermal zone, numbered where several have one name."""
    clocks_hz: dict[Name, Count] = {}
    """By cluster of cores (``policy0``) or unit (``gpu``)."""
    busy: dict[Name, float] = {}
    """How many cores of a cluster worked since the sample before, 0.5 for half the time of one; of
    another unit, the part of the time."""
    power_w: dict[Name, float] = {}
    """By rail or domain."""
    throttled: list[Name] = []
    """Causes for which the device is slowed down now."""
    load: float | None = None
    used_bytes: dict[Name, Count] = {}
    """By GPU: how much of its memory all programs use."""


class Sampling(StrictModel):
    """The sensors during one process run, read by a process of low priority."""

    interval_s: Annotated[float, Field(gt=0)]
    samples: list[Sample]
    unknown: dict[Name, Name]
    """Why a kind of sensor (``temperature``, ``clocks``, ``power``, ``throttling``, ``load``) was
    not read."""
    trip_points_c: dict[Name, float] = {}
    """By thermal zone: the temperature from which the system slows the device down."""
    cpu_ns: Count
    """Processor time that the sampler took, from its first reading on."""
    elapsed_ns: Ns
    """How long it read."""


class Energy(StrictModel):
    """What the timed part of a run took, over all that the sensor covers; idle power included."""

    joules: Annotated[float, Field(ge=0)]
    source: Name
    """Which sensor: ``RAPL package-0``, ``INA3221 VDD_IN``."""


class OtherWork(StrictModel):
    """What others took of the processor in the timed part of a run, by the system's own counters.

    Cores are averages over that time: 0.5 is half of the time of one core.
    """

    cores: Annotated[int, Field(gt=0)]
    """The cores that the measured process may use; what happens on others is not counted."""
    own_cores: Annotated[float, Field(ge=0)]
    """The cores on which the measured process ran."""
    other_cores: Annotated[float, Field(ge=0)]
    """The cores on which other processes or the kernel ran."""
    stolen_cores: Annotated[float, Field(ge=0)]
    """The cores that a virtual machine's host gave to others while this one had work for them."""
    waiting: Annotated[float, Field(ge=0, le=1)] | NotMeasured
    """For what part of the time any process on the device had work and waited for a core."""


class DeviceFacts(StrictModel):
    """What the device and its software are, as the harness found them."""

    os: Name
    arch: Name
    model: Name | NotMeasured
    cpu: Name | NotMeasured
    cpu_count: Annotated[int, Field(gt=0)]
    emulated: bool
    """Whether the processor is an emulated one, or WebGPU's GPU a program: its time is not a
    device's time."""
    python: Name
    numpy: Name
    onnxruntime: Name
    providers: list[Name]
    """All providers that this build of onnxruntime has."""
    driver: Name | NotMeasured
    """The version of L4T on a Jetson, otherwise that of NVIDIA's driver."""
    boot_id: Name | NotMeasured
    conditions: Conditions


class Selection(StrictModel):
    """What the loader chose on the device."""

    variant: Name
    unused: list[Unused]
    device: DeviceFacts


class VariantTrial(StrictModel):
    """How far the loader is with a variant, as the device reports it every few seconds."""

    variant: Id
    building: bool
    """Whether nothing was kept of its engines and compiled models when it began."""
    seconds: Annotated[float, Field(ge=0)]
    kept_bytes: Count
    """What is kept of them by now."""

    def __str__(self) -> str:
        doing = "building engines of" if self.building else "trying"
        minutes, seconds = divmod(int(self.seconds), 60)
        took = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
        kept = f", {self.kept_bytes / 1e6:.1f} MB" if self.building and self.kept_bytes else ""
        return f"{doing} {self.variant}: {took}{kept}"


class Joined(StrictModel):
    """The samples of a process run that were joined to batches."""

    batches: Annotated[int, Field(gt=0)]
    """The timed ones."""
    min_sqnr_db: float
    """The lowest SQNR over golden samples in batches, in dB, before and in the timed part; -200
    stands for outputs that cannot be compared."""


class ProcessRun(StrictModel):
    """One process that loaded the model, checked it, warmed up and timed it."""

    variant: Name
    session_create_ns: Ns
    """Warm: the model's file was read before."""
    first_inference_ns: Ns
    warm_up_iterations: Count
    steady: bool
    """Whether the last three windows of the warm-up agreed within 3 %."""
    latencies_ns: Annotated[list[Ns], Field(min_length=1)]
    """Every timed query in order, by the device's monotonic clock. Nothing is dropped. A query is
    one inference, but in the load scenarios ``multi-stream`` and ``offline``; of ``server`` it is
    counted from the moment at which it was to arrive."""
    timed_from_ns: Ns | NotMeasured
    """When the first query began."""
    timed_to_ns: Ns | NotMeasured
    """When the last one ended."""
    inferences: Annotated[int, Field(gt=0)] | NotMeasured
    """The number of inferences in that time, over all queries; joined samples count one by one."""
    golden_min_sqnr_db: float
    """The lowest SQNR over all goldens and outputs, in dB, checked on the timed session before
    timing; -200 stands for outputs that cannot be compared."""
    joined: Annotated[Joined | NotMeasured, Field(exclude_if=lambda given: given == NOT_JOINED)] = (
        NOT_JOINED
    )
    """Written only where samples were joined."""
    not_finite: Annotated[list[Name], Field(exclude_if=lambda given: not given)] = []
    """Of a model with a state, whose timed inferences are frames of a stream: the outputs that had
    NaN or infinity after them, where no golden one has. Written only where there are some."""
    boot_id: Name | NotMeasured
    before: Conditions
    after: Conditions
    sampling: Sampling | NotMeasured
    energy: Energy | NotMeasured
    other_work: OtherWork | NotMeasured

    @property
    def timed_ns(self) -> int | NotMeasured:
        """From the beginning of the first query to the end of the last."""
        if isinstance(self.timed_from_ns, NotMeasured):
            return self.timed_from_ns
        if isinstance(self.timed_to_ns, NotMeasured):
            return self.timed_to_ns
        return self.timed_to_ns - self.timed_from_ns

    @property
    def throughput(self) -> float | NotMeasured:
        """Inferences a second in that time."""
        if isinstance(self.inferences, NotMeasured):
            return self.inferences
        took_ns = self.timed_ns
        if isinstance(took_ns, NotMeasured):
            return took_ns
        return self.inferences * 1e9 / took_ns if took_ns > 0 else TIMELESS

    @property
    def samples_per_query(self) -> float:
        """Inferences in one query."""
        if isinstance(self.inferences, NotMeasured):
            return 1.0
        return self.inferences / len(self.latencies_ns)


def list_latencies_ns(runs: Sequence[ProcessRun]) -> list[int]:
    """Return all latencies of process runs, in order."""
    return [latency for run in runs for latency in run.latencies_ns]


class Creation(StrictModel):
    """How long making a session, or a start, takes, each time in a separate process."""

    cold_ns: Annotated[list[Ns], Field(min_length=1)] | NotMeasured
    """With the model's file not in memory, and engines and compiled models kept."""
    warm_ns: Annotated[list[Ns], Field(min_length=1)]
    """With the file in memory."""


class Scenario(StrictModel):
    """How queries arrive, in the words of MLPerf LoadGen."""

    name: Literal["single-stream", "multi-stream", "server", "offline"] = "single-stream"
    samples_per_query: Annotated[int, Field(gt=0)] = 1
    queries_per_s: Annotated[float, Field(gt=0)] | None = None
    """The average rate of ``server``; the times between arrivals are exponential."""
    latency_bound_ms: Annotated[float, Field(gt=0)] | None = None
    """For ``server``: 99 % of the queries have to be answered within this time."""
    threads: Annotated[int, Field(gt=0)] = 1
    """The number of inferences at once; ``single-stream`` always has one."""
    max_batch: Annotated[int, Field(gt=0), Field(exclude_if=lambda most: most == 1)] = 1
    """Of ``server`` and ``offline``: how many samples that wait are joined to a batch at most."""
    queue_delay_ms: Annotated[float, Field(ge=0), Field(exclude_if=lambda delay: delay == 0)] = 0.0
    """Of ``server``: how long after its arrival a query waits for others to be joined with."""


SINGLE_STREAM = Scenario()


class OutputCheck(StrictModel):
    """Whether outputs were right before they were timed."""

    how: Name
    """What they were compared with."""
    nearness_db: float
    """The worst SQNR of that, in dB; 200 stands for equal, -200 for what cannot be compared."""
    needed_db: float
    problem: Name = ""
    """What is wrong; empty if they are right."""


class SweepPoint(StrictModel):
    """The model with inputs of other sizes than its goldens have."""

    shapes: dict[Name, list[Count]]
    """The shape of each input."""
    batch: Annotated[int, Field(gt=0)]
    """Samples in one inference."""
    latencies_ns: list[Ns]
    """The latencies of one process run, as a single stream."""
    steady: bool = True
    """Whether its warm-up ended steady."""
    checked: OutputCheck | NotMeasured = NOT_CHECKED
    """There are latencies only of outputs that are right, or that nobody checked."""
    problem: Name = ""
    """Why there are no latencies."""

    def __str__(self) -> str:
        sizes = self.shapes.items()
        return ", ".join(f"{name}={'x'.join(map(str, dims))}" for name, dims in sizes)

    @property
    def is_wrong(self) -> bool:
        """Whether its outputs were found to be wrong."""
        return not isinstance(self.checked, NotMeasured) and bool(self.checked.problem)


class BestBatch(StrictModel):
    """The batch of a sweep with the most samples a second within a latency."""

    batch: Annotated[int, Field(gt=0)]
    samples_per_s: Annotated[float, Field(gt=0)]
    """By the median latency."""
    percentile: Literal[90, 99]
    """Which one is held to the bound: 99 where every batch has enough inferences for it."""
    latency_ms: Annotated[float, Field(ge=0)]
    """That percentile of the batch's latencies."""
    bound_ms: Annotated[float, Field(gt=0)]
    is_within: bool
    """Whether it is within the bound; if no batch is, this is the nearest."""


class Canary(StrictModel):
    """A small model that is the same in every bundle, measured in the same session."""

    model_sha256: Sha256
    medians_ns: Annotated[list[Ns], Field(min_length=1)]
    """The canary's latency in each of its process runs, on the CPU in one thread."""


class TunedSetting(StrictModel):
    """A setting of the device that was changed for the measurement."""

    name: Name
    """``governor of policy0``, ``power mode``."""
    before: Name
    during: Name
    restored: bool


class TensorSize(StrictModel):
    """One tensor, as a node reads or writes it."""

    dtype: Name
    """As onnxruntime has it: ``float``, ``uint8``."""
    dims: list[int]


class NodeSizes(StrictModel):
    """What a node reads and writes in one run."""

    activation_bytes: Count
    parameter_bytes: Count
    """Of weights, as the model has them."""
    output_bytes: Count
    inputs: list[TensorSize]
    """Weights among them."""
    outputs: list[TensorSize]

    @property
    def moved_bytes(self) -> int:
        """All that it reads and writes once."""
        return self.activation_bytes + self.parameter_bytes + self.output_bytes


class PlacedNode(StrictModel):
    """One node as it ran, and where. What a provider compiled is one node."""

    name: Name
    op: Name
    provider: Name
    mean_us: float
    """Microseconds, by onnxruntime's profiler, over all runs but the first."""
    median_us: float
    """The same, which one run that was interrupted does not move."""
    sizes: Annotated[NodeSizes | None, Field(exclude_if=lambda given: given is None)] = None
    """None of what a provider compiled, and where it was not asked."""


class Placement(StrictModel):
    """Which provider ran each node, from a profile made in a separate process."""

    variant: Name
    runs: Count
    nodes: list[PlacedNode]
    between_us: float | NotMeasured = NOT_ASKED
    """What onnxruntime does between the nodes of a run, in the median, in microseconds."""

    @property
    def counts(self) -> dict[str, int]:
        """The number of nodes by provider, most first."""
        return dict(Counter(node.provider for node in self.nodes).most_common())

    def compute_share(self, provider: str) -> float:
        """Return the share of nodes that ran on a provider."""
        return self.counts.get(provider, 0) / len(self.nodes) if self.nodes else 0.0


class Memory(StrictModel):
    """Peaks of resident memory of a separate process."""

    baseline_bytes: Count
    """With Python, numpy and onnxruntime, before the model."""
    loaded_bytes: Count
    peak_bytes: Count
    """After ``runs`` inferences."""
    runs: Count
    gpu_bytes: Count | NotMeasured = NOT_READ
    """What was taken meanwhile of the memory of all GPUs that the driver tells of, by whomever."""

    @property
    def model_bytes(self) -> int:
        """What the model added to the peak."""
        return self.peak_bytes - self.baseline_bytes


class Move(StrictModel):
    """How fast an operator at best reads and writes that only passes on what it reads."""

    moved_bytes: Annotated[int, Field(gt=0)]
    """Read and written together: what has room in a cache is faster."""
    bytes_per_s: Annotated[float, Field(gt=0)]


class Peak(StrictModel):
    """The best that onnxruntime's kernels reach on a device's processor, with so many threads."""

    threads: Count
    """0 is onnxruntime's choice."""
    moves: Annotated[list[Move], Field(min_length=1)]
    """Smallest first."""
    multiply_adds_per_s: dict[Literal["float32", "int8"], Annotated[float, Field(gt=0)]]
    """In a product of matrices."""


class BoundRuns(StrictModel):
    """Inferences of a separate process whose inputs and outputs stay in the device's memory."""

    memory: Name
    """Onnxruntime's name of it: ``cuda``."""
    write_ns: Annotated[list[Ns], Field(min_length=1)]
    """How long copying the inputs there took, each time."""
    run_ns: Annotated[list[Ns], Field(min_length=1)]
    """How long computing took, each time."""
    read_ns: Annotated[list[Ns], Field(min_length=1)]
    """How long copying the outputs back took, each time."""
    graph_run_ns: list[Ns] | NotMeasured
    """As ``run_ns``, where the provider recorded a run once and starts that as one."""


class Phases(StrictModel):
    """What a program waits for when it calls the loader's ``predict``, in a separate process.

    Whole calls and calls in phases took turns; each list has the calls in that order. Between the
    phases there is nothing but the clock.
    """

    given: Name
    """What it was given, made of the first golden sample: ``a picture of 1280 x 720``, ``a text of
    80 characters``, ``tensors``."""
    found: Name
    """How many classes or objects were in the answers, by output: ``boxes: 3``."""
    decode_ns: PhaseNs
    """A picture's file (JPEG, in memory) to pixels, by Pillow. It comes before ``predict``."""
    preprocess_ns: PhaseNs
    """Pictures and texts to tensors."""
    copy_in_ns: PhaseNs
    """Tensors into the memory of the device that computes."""
    run_ns: Annotated[list[Ns], Field(min_length=1)]
    """The session's run; with the copies where they were not timed apart."""
    copy_out_ns: PhaseNs
    """Outputs back."""
    answers_ns: PhaseNs
    """Outputs to classes, objects or vectors."""
    predict_ns: Annotated[list[Ns], Field(min_length=1)]
    """The whole call, timed on its own: from pictures, texts and tensors to answers."""

    @property
    def parts(self) -> dict[str, list[int] | NotMeasured]:
        """The phases by name, in the order in which they happen."""
        return {
            "decode": self.decode_ns,
            "preprocessing": self.preprocess_ns,
            "copy in": self.copy_in_ns,
            "run": self.run_ns,
            "copy out": self.copy_out_ns,
            "answers": self.answers_ns,
        }


class Speedup(StrictModel):
    """How much faster a variant was than another whose process runs were made in turn with its."""

    over: Name
    """The other variant: fp32 on the CPU, where that is in the bundle."""
    report: ReportId
    """The other's report."""
    ratio: Annotated[float, Field(gt=0)]
    """The other's p50 over this one's: the geometric mean over pairs of process runs."""
    low: float | None
    """The 95 % interval of that; None of one pair."""
    high: float | None
    pairs: Count


class VariantFacts(StrictModel):
    """What the bundle's manifest has of one variant."""

    id: Name
    recipe: Name
    model_bytes: Count
    min_sqnr_db: float
    session: Annotated[SessionSettings | None, Field(exclude_if=lambda given: given is None)] = None
    """None where the edgepack that measured this did not write it down."""
    providers: Annotated[list[Name], Field(exclude_if=lambda given: not given)] = []
    """In order of preference; empty where that edgepack did not write them down."""
    accuracy: Accuracy | NotMeasured
    """On the build host's CPU."""
    simulated: Simulated | NotMeasured | None = None
    """In its provider's simulator on the build host; None where no vendor has one."""
    layers: list[LayerError] | NotMeasured = []
    """The error of each node on the build host's CPU, worst first; some of the worst."""
    tried: list[Attempt] = []
    """What was tried to keep its accuracy."""
    outside: list[OutsideError] | NotMeasured = []
    """What inputs unlike the samples break on the build host's CPU, the farthest first."""
    input_ranges: dict[str, tuple[float, float]] = {}
    """The values that each quantized input was calibrated with."""
    untold: list[str] = []
    """Changes of the model that the bundle's goldens do not detect."""


class RunReport(StrictModel):
    """One bundle, measured on one device."""

    schema_version: Literal[2]
    id: ReportId
    created: str
    """ISO 8601, UTC, by the host's clock."""
    device: Name
    """The device's name in the inventory."""
    facts: DeviceFacts
    project: Name = ""
    """The project's name, which stays the same over its versions; empty if it is not known."""
    bundle: Name
    """The bundle's id."""
    manifest_sha256: Sha256
    target: Name
    bundle_bytes: Count
    variants: list[VariantFacts]
    variant_requested: Name | Literal["first that works"]
    """``all`` where every variant was."""
    variant_used: Name
    unused: list[Unused]
    preset: Name
    scenario: Scenario = SINGLE_STREAM
    edgepack: Name = ""
    """The version that made this report; empty where it did not say so."""
    argv: list[Name] = []
    """The command of a timed process run on the device."""
    runs: Annotated[list[ProcessRun], Field(min_length=1)]
    creation: Creation | NotMeasured
    start: Creation | NotMeasured = NOT_ASKED
    """From the beginning of a process to its first answer, with Python, the loader and its checks
    of the goldens; to a tick of the device's clock, mostly 10 ms."""
    memory: Memory | NotMeasured
    placement: Placement | NotMeasured
    bound: BoundRuns | NotMeasured = NOT_ASKED
    peak: Peak | NotMeasured = NOT_ASKED
    topology: Topology | NotMeasured = NotMeasured(reason="the device was not asked")
    """The processors that the measured process may use."""
    phases: Phases | NotMeasured = NOT_ASKED
    """What a program waits for when it calls ``predict``."""
    sweep: list[SweepPoint] = []
    best_batch: Annotated[
        BestBatch | NotMeasured | None, Field(exclude_if=lambda given: given is None)
    ] = None
    """None where it was not asked for."""
    canary: Canary | NotMeasured
    tuned: list[TunedSetting] = []
    limits: Annotated[Limits, Field(exclude_if=lambda limits: limits == Limits())] = Limits()
    """Those that the project sets for this device."""
    beside: Annotated[list[ReportId], Field(exclude_if=lambda ids: not ids)] = []
    """The reports of other variants whose process runs were made in turn with these."""
    speedup: Annotated[
        Speedup | NotMeasured | None, Field(exclude_if=lambda given: given is None)
    ] = None
    """None of a variant that was measured alone."""
    unfinished: Name = ""
    """Why it ended early; then what was measured until then is here."""
    verdict: Verdict
    heavy_tail: Name = ""
    """Why p90, p95, p99, mean, throughput and energy are inconclusive, and only p50 may be used;
    empty if all may."""
    notes: list[str]
    """What the reader has to know that does not make the numbers invalid."""

    @property
    def latencies_ns(self) -> list[int]:
        """All latencies of all process runs, in order."""
        return list_latencies_ns(self.runs)


class EvaluationReport(StrictModel):
    """The project's metric, measured through a device's own execution provider."""

    schema_version: Literal[1]
    id: ReportId
    created: str
    """ISO 8601, UTC, by the host's clock."""
    device: Name
    """The device's name in the inventory."""
    facts: DeviceFacts
    project: Name = ""
    """The project's name; empty if it is not known."""
    bundle: Name
    manifest_sha256: Sha256
    target: Name
    variant: Name
    """The variant that the device used."""
    unused: list[Unused]
    samples_sha256: Sha256
    """The SHA-256 of the evaluation set."""
    measured: Accuracy
    interval: tuple[float, float] | NotMeasured
    """The 95 % interval of the measured value."""
    simulated: Accuracy | NotMeasured
    """On the build host, from the bundle's manifest: in the provider's simulator if that computed
    enough samples, else on the CPU."""
    placement: Placement | NotMeasured
    limits: Annotated[Limits, Field(exclude_if=lambda limits: limits == Limits())] = Limits()
    """Those that the project sets for this device."""
    reasons: list[Name] = []
    """Why the metric must not be used; empty if it may."""
    inference_ns: list[Ns]
    """The inference time of every sample, on the device."""
    resumed: Count = 0
    """How many samples an earlier call had run, which did not come to its end."""
    elapsed_ns: Ns
    """The whole evaluation, by the host's clock; of what was resumed its last call."""


class ImportedReport(StrictModel):
    """The log of another benchmark tool.

    It has no conditions, no checked outputs and no process runs, so its numbers are shown without a
    verdict.
    """

    schema_version: Literal[1]
    id: ReportId
    created: str
    """ISO 8601, UTC: of the log where that says it, else of its file."""
    tool: Literal["onnxruntime_perf_test", "trtexec", "benchmark_app", "litert_benchmark_model"]
    tool_version: Name | NotMeasured
    device: Name
    """As the user names it."""
    model: Name
    """As the log, or else the user, names it."""
    log: Name
    """The name of the file that was read."""
    log_sha256: Sha256
    provider: Name | NotMeasured
    latencies_ns: list[Ns] | NotMeasured
    """Every inference, where the log has them."""
    statistics_ns: dict[Name, float]
    """As the tool computed them: ``mean``, ``p50``, ``p90``, ``min``, ``max``, ``std``."""
    phases_ns: dict[Name, float] = {}
    """``session create``, ``first inference``, ``compile``, as far as the log has them."""
    throughput: Annotated[float, Field(ge=0)] | NotMeasured
    """Inferences a second."""
    peak_bytes: Count | NotMeasured
    notes: list[str] = []
