"""What the templates of a bundle's README and runtime code are filled with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath

from edgepack.apps.maven import COROUTINES, KOTLIN_VERSION, find_licenses
from edgepack.apps.reduced_runtime import make_build_command
from edgepack.apps.render import BundleContext, ProviderHelp, VariantLine
from edgepack.backends.registry import find_backend
from edgepack.base.schema import NotMeasured
from edgepack.builder.example import make_example_inputs, write_prediction_lines
from edgepack.builder.job import JudgedBundle
from edgepack.builder.judging import read_simulation
from edgepack.builder.model_files import ModelFiles, list_ort_operators
from edgepack.builder.service_files import has_service
from edgepack.bundle.manifest import Accuracy, BundleFile, Simulated
from edgepack.model.facts import TensorSpec
from edgepack.project.identifiers import find_version_number, make_comment, make_macro
from edgepack.project.inputs import Documented
from edgepack.project.profile import Profile
from edgepack.steps.graph.ort_format import OPERATORS


def make_bundle_context(
    judged: JudgedBundle, models: Sequence[ModelFiles], files: Iterable[BundleFile]
) -> BundleContext:
    """Return everything that templates may use.

    Args:
        judged: The bundle.
        models: Of each shipped variant.
        files: Of the bundle so far: models, golden samples and the project's files.
    """
    project, profile = judged.project, judged.profile
    inputs, outputs = judged.signature
    examples = tuple(make_example_inputs(project, inputs))
    data = [file for file in files if file.role in ("model", "golden", "file")]
    return BundleContext(
        bundle_id=f"{project.name}-{project.version}-{profile.id}",
        name=project.name,
        version=project.version,
        number=find_version_number(project.version),
        macro=make_macro(project.name),
        target_title=profile.title,
        inputs=tuple(_format_tensor(spec, project.inputs.get(spec.name)) for spec in inputs),
        outputs=tuple(_format_tensor(spec, project.outputs.get(spec.name)) for spec in outputs),
        variants=tuple(
            VariantLine(
                planned.variant.id,
                f"{model.size_bytes / 1e6:.2f} MB",
                _format_accuracy(accuracy)
                + _format_simulated(read_simulation(planned, judged.execution)),
            )
            for (planned, accuracy), model in zip(judged.verdict.shipped, models, strict=True)
        ),
        unused=judged.verdict.unused,
        requirements=tuple(_format_pin(n, v) for n, v in judged.packages.items()),
        example_inputs=examples,
        state=tuple(project.state.items()),
        prediction=write_prediction_lines(project, examples, outputs),
        libraries=tuple(project.custom_ops),
        providers=tuple(_list_provider_help(profile)),
        reduced_build=_format_reduced_build(judged),
        packages=find_licenses(profile.runtime.packages) if profile.family == "android" else (),
        kotlin_version=KOTLIN_VERSION,
        coroutines=COROUTINES.coordinates,
        native_libraries=_list_native_libraries(profile),
        data_size=_format_sizes(data),
        data_paths=tuple(sorted(file.path for file in data)),
        model_suffixes=tuple(sorted({PurePosixPath(m.path).suffix[1:] for m in models})),
        serves=has_service(project, profile),
    )


def _format_sizes(files: Sequence[BundleFile]) -> str:
    """Return what files have together, and of it each role that has some."""
    parts = {"model": "models", "golden": "golden samples", "file": "files"}
    sizes = {role: sum(f.size_bytes for f in files if f.role == role) / 1e6 for role in parts}
    each = ", ".join(f"{parts[role]} {size:.2f}" for role, size in sizes.items() if size)
    return f"{sum(sizes.values()):.2f} MB ({each})"


def _format_tensor(spec: TensorSpec, said: Documented | None) -> str:
    """Return a line of Markdown for an input or output, with what the project says of it."""
    words = make_comment((said and said.description) or "")
    return f"`{spec}`{f': {words}' if words else ''}"


def _format_reduced_build(judged: JudgedBundle) -> tuple[str, ...]:
    profile, operators = judged.profile, list_ort_operators(judged)
    pinned = profile.runtime.onnxruntime
    # For browsers there are no .ort files: their kernels would be another processor's.
    if not operators or pinned is None or profile.device.os == "browser":
        return ()
    formats = [planned.variant.model_format for planned in judged.shipped]
    # Optimizations left to the session need an extended minimal build.
    extended = any(f != "onnx" and f.ort == "runtime" for f in formats)
    return make_build_command(
        profile.device.os,
        pinned[1],
        config=f'"$BUNDLE/models/{OPERATORS}"',
        extended=extended,
        ml_operators=any(line.startswith("ai.onnx.ml;") for line in operators),
    )


def _format_accuracy(found: Accuracy | NotMeasured) -> str:
    if isinstance(found, NotMeasured):
        return f"not measured: {found.reason}"
    fp32 = "" if isinstance(found.fp32, NotMeasured) else f", fp32 {found.fp32:.4f}"
    return f"{found.metric} {found.value:.4f}{fp32} ({found.samples} samples)"


def _format_simulated(found: Simulated | NotMeasured | None) -> str:
    """Return what a vendor's simulator showed, behind the accuracy; nothing without one."""
    if not isinstance(found, Simulated) or found.accuracy is None:
        return ""
    return f"; in the simulator of {found.simulator}: {_format_accuracy(found.accuracy)}"


def _list_native_libraries(profile: Profile) -> tuple[str, ...]:
    """Return the libraries of the Android system that a target's providers load."""
    backends = (find_backend(variant) for variant in profile.variants)
    return tuple(sorted({name for backend in backends for name in backend.native_libraries}))


def _list_provider_help(profile: Profile) -> Iterator[ProviderHelp]:
    """Yield where each provider comes from; commands that give several are there once."""
    seen: set[tuple[str, ...]] = set()
    for name, source in profile.runtime.providers.items():
        commands = tuple(source.commands)
        yield ProviderHelp(name, source.about, () if commands in seen else commands)
        seen.add(commands)


def _format_pin(name: str, version: str) -> str:
    """Return a package as ``requirements.txt`` or, for a bare version, Gradle spells it."""
    return f"{name}{version}" if version[:1] in "=<>~!" else f"{name}:{version}"
