"""Sessions of this bundle's variants: their execution providers, settings and cache folders.

The loader's other half: this module makes a session as the manifest says, and the loader proves
that it works. onnxruntime silently accepts misspelt settings and missing devices, so names are
compared first (:mod:`edgepack_names`), and the resulting session is checked afterwards.

Needs Python 3.8 or newer and onnxruntime; nothing else.
"""

from __future__ import annotations

import ctypes
import glob
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Set, Tuple, Type

# Official builds of onnxruntime 1.29 and newer send telemetry unless this is set before they load.
# Source: Privacy.md in the onnxruntime 1.31.1 wheel.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as _ort_state

if __package__:
    from . import edgepack_names as names
    from . import edgepack_nvidia as nvidia
else:
    import edgepack_names as names  # type: ignore[import-not-found,no-redef]
    import edgepack_nvidia as nvidia  # type: ignore[import-not-found,no-redef]

PRECISE = "session.x64quantprecision"
_PROCESSORS = Path("/sys/devices/system/cpu")
NEVER_ENDED = ("ACLExecutionProvider",)
"""Providers whose sessions last as long as the process: when one ends, a run of any other crashes.
Source: onnxruntime 1.21.0 with ACL 24.11, aarch64 under qemu-user (2026-11-27)."""
_KEPT: List[Any] = []
CPU = "CPUExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
EXTENSIONS = "onnxruntime_extensions"
CACHE = "{cache}"
"""In a setting's value: the variant's cache folder on this machine."""
CACHE_VARIABLE = "EDGEPACK_CACHE"

# onnxruntime's exceptions have no common base of their own.
_ORT_KINDS = [kind for kind in vars(_ort_state).values() if isinstance(kind, type)]
ORT_ERRORS: Tuple[Type[Exception], ...] = (
    RuntimeError,
    ValueError,
    *(kind for kind in _ORT_KINDS if issubclass(kind, Exception)),
)
_PLUGIN_ERRORS: Tuple[Type[Exception], ...] = (
    *ORT_ERRORS,
    AttributeError,
    ImportError,
    OSError,
)

Entry = Dict[str, Any]
"""A variant as the manifest has it."""

GRAPH_LEVELS: Dict[str, str] = {
    "disabled": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
"""By the manifest's word, onnxruntime's ``GraphOptimizationLevel``."""
EXECUTION_MODES: Dict[str, str] = {"sequential": "ORT_SEQUENTIAL", "parallel": "ORT_PARALLEL"}
"""By the manifest's word, onnxruntime's ``ExecutionMode``."""
_PLAIN_SETTINGS = (
    "inter_op_num_threads",
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
    "log_severity_level",
)
"""Settings that ``SessionOptions`` has under the same name; a manifest has those that were set."""
_SESSION_SETTINGS = {
    "intra_op_num_threads",
    "graph_optimization_level",
    "execution_mode",
    "config",
    *_PLAIN_SETTINGS,
}


_STDERR = "what onnxruntime wrote to stderr may say why"
_LONGEST = 400


class Refused(Exception):  # noqa: N818
    """Why one variant cannot be used here."""


def check_requirements(entry: Entry, sources: Optional[Mapping[str, Any]] = None) -> None:
    """Make sure that this machine has the providers, CPU flags and libraries that a variant needs.

    A provider that comes as a plugin beside onnxruntime is registered.

    Args:
        entry: The variant.
        sources: The manifest's ``provider_sources``: by provider, where a runtime with it is from.

    Raises:
        Refused: One is missing.
    """
    for provider in entry["providers"]:
        absence = _explain_absence(provider)
        about = (sources or {}).get(provider["name"], {}).get("about", "")
        if absence:
            raise Refused(f"{absence}. {about}" if about else absence)
        if _list_plugin_devices(provider["name"]):
            _find_plugin_device(provider)
    missing = sorted(set(entry["requires"]["cpu"]) - read_cpu_flags())
    if missing:
        raise Refused(f"this CPU lacks {', '.join(missing)}")
    if _has_extensions(entry) and importlib.util.find_spec(EXTENSIONS) is None:
        raise Refused("onnxruntime-extensions is not installed (requirements.txt has its version)")
    _register_custom_ops(entry, ort.SessionOptions())


def list_compiled(entry: Entry) -> List[Entry]:
    """Return a variant once for each of its compiled models, as the manifest orders them."""
    compiled = entry.get("compiled", [])
    if not isinstance(compiled, list):  # why there are none
        return []
    first, *others = entry["providers"]
    return [
        {
            **entry,
            "model": each["model"],
            "model_sha256": each["model_sha256"],
            "compiled_for": each["hardware"],
            "sdk": each["sdk"],
            "providers": [
                {**first, "options": {**first["options"], each["option"]: each["hardware"]}},
                *others,
            ],
        }
        for each in compiled
    ]


def check_compiled(entry: Entry) -> None:
    """Make sure that a compiled model is of the vendor's SDK that is here.

    Raises:
        Refused: It is of another.
    """
    package = names.PLUGINS.get(entry["providers"][0]["name"])
    if "compiled_for" not in entry or package is None:
        return
    try:
        # onnxruntime-qnn 2.7.0 has it; where it is not told, the session refuses what is not taken.
        about = importlib.import_module(f"{package}.build_and_package_info")
    except ImportError:
        return
    here = getattr(about, "qnn_version", entry["sdk"])
    if here != entry["sdk"]:
        raise Refused(f"it was compiled by the SDK {entry['sdk']}, and {here} is here")


def _has_extensions(entry: Entry) -> bool:
    """Return whether the model has operators of onnxruntime-extensions."""
    return bool(entry.get("requires", {}).get("extensions"))


def _register_custom_ops(entry: Entry, options: Any) -> None:
    """Let a session run the model's custom operators, from the bundle's library for this machine.

    Raises:
        Refused: The bundle has none for it, or the library does not load.
    """
    libraries: Dict[str, str] = entry.get("custom_ops", {})
    if not libraries:
        return
    arch = platform.machine().lower()
    machine = f"{platform.system().lower()}-{'x86-64' if arch in ('x86_64', 'amd64') else arch}"
    if machine not in libraries:
        known = ", ".join(libraries)
        raise Refused(f"the bundle has its custom operators for {known}, not for {machine}")
    try:
        options.register_custom_ops_library(libraries[machine])
    except ORT_ERRORS as error:
        said = _shorten_error(error)
        raise Refused(f"the library of its custom operators does not load: {said}") from error


def _explain_absence(provider: Mapping[str, Any]) -> str:
    """Return why a provider is not here, or nothing if it is."""
    name, plugin = provider["name"], provider.get("plugin")
    available = ort.get_available_providers()
    if (name in available and not plugin) or _list_plugin_devices(name):
        return ""
    package = plugin["package"] if plugin else names.PLUGINS.get(name)
    if package is None or not (plugin or importlib.util.find_spec(package)):
        return f"{name} is not in this onnxruntime (it has {', '.join(available)})"
    _register_plugin(name, package, plugin)
    if not _list_plugin_devices(name):
        return f"{name} is in the plugin {package}, which lists no device on this machine"
    return ""


_OWN_PLUGINS: Set[str] = set()
"""Providers of plugins that variants name themselves, once these are registered."""


def _find_plugin_library(plugin: Mapping[str, Any]) -> str:
    """Return where the library of a plugin lies that a variant names itself.

    Raises:
        OSError: Its package is not installed, or has no such file.
    """
    try:
        found = importlib.metadata.distribution(plugin["package"])
    except importlib.metadata.PackageNotFoundError as error:
        raise OSError("it is not installed (requirements.txt has its version)") from error
    library = Path(str(found.locate_file(plugin["library"])))
    if not library.is_file():
        raise OSError(f"version {found.version} has no file {plugin['library']}")
    return str(library)


def _register_plugin(provider: str, package: str, plugin: Optional[Mapping[str, Any]]) -> None:
    """Register a plugin's library, once in a process: onnxruntime 1.23 and newer take plugins.

    Args:
        provider: The name to register it by.
        package: What brings it.
        plugin: What a variant says of it; None of one in :data:`edgepack_names.PLUGINS`.

    Raises:
        Refused: It does not load.
    """
    if not hasattr(ort, "register_execution_provider_library"):
        raise Refused(f"onnxruntime {ort.__version__} does not take the plugin {package}")
    try:
        if plugin is None:
            library = importlib.import_module(package).get_library_path()
        else:
            library = _find_plugin_library(plugin)
        ort.register_execution_provider_library(provider, library)
    except _PLUGIN_ERRORS as error:
        if "already registered" not in str(error):
            raise Refused(f"the plugin {package} does not load: {_shorten_error(error)}") from error
    if plugin is not None:
        _OWN_PLUGINS.add(provider)


def _list_plugin_devices(provider: str) -> List[Any]:
    """Return the devices that a registered plugin lists; none if the provider is no plugin's."""
    known = provider in names.PLUGINS or provider in _OWN_PLUGINS
    if not known or not hasattr(ort, "get_ep_devices"):
        return []
    return [device for device in ort.get_ep_devices() if device.ep_name == provider]


def apply_settings(entry: Entry, settings: Mapping[str, Any]) -> Entry:
    """Return a variant with other settings than the manifest's, for this process.

    Args:
        entry: The variant.
        settings: ``session`` and ``providers`` as a manifest has them; what is not there stays.

    Raises:
        Refused: It has something else, or other providers than the variant's. What stands in
            ``config`` and ``options`` is looked at where the session is made.
    """
    if not settings:
        return entry
    session = settings.get("session", entry["session"])
    unknown = set(settings) - {"session", "providers"} | set(session) - _SESSION_SETTINGS
    if unknown:
        raise Refused(f"a session has no setting {', '.join(map(repr, sorted(unknown)))}")
    listed = settings.get("providers", entry["providers"])
    found = [provider["name"] for provider in listed]
    wanted = [provider["name"] for provider in entry["providers"]]
    if found != wanted:
        raise Refused(f"the providers are {', '.join(wanted)}, not {', '.join(found)}")
    session = {"intra_op_num_threads": 0, "config": {}, **session}
    # Where a plugin is from is no setting.
    froms = [{k: p[k] for k in p if k == "plugin"} for p in entry["providers"]]
    listed = [{"options": {}, **provider, **froms[k]} for k, provider in enumerate(listed)]
    return {**entry, "session": session, "providers": listed}


def open_session(model: Path, entry: Entry, cache: Path, profile_prefix: str = "") -> Any:
    """Create the session of a variant as its manifest entry says.

    Args:
        model: The variant's model file.
        entry: The variant.
        cache: The folder for caches, as :func:`find_cache_root` has it.
        profile_prefix: Where onnxruntime's profile goes; none is made if empty.

    What a process that was killed left in the cache is no obstacle: if the session cannot be
    created with what lies there, it is created without.

    Raises:
        Refused: A setting is unknown, the session cannot be created, or onnxruntime left the first
            provider out.
    """
    check_settings(entry)
    filled = add_cache(entry, cache)
    try:
        session = _open_session(model, filled, profile_prefix)
    except _NotOpenedError as refusal:
        folder = find_cache_folder(entry, cache)
        if folder is None or not any(folder.iterdir()):
            raise
        try:
            with _set_aside(folder):
                session = _open_session(model, filled, profile_prefix)
        except (_NotOpenedError, OSError):  # the latter of a cache that is not ours to change
            raise refusal from None
    first = find_session_providers(entry)[0]["name"]
    if session.get_providers()[0] != first:
        raise Refused(f"onnxruntime left {first} out of the session; {_STDERR}")
    if first in NEVER_ENDED:
        _KEPT.append(session)
    return session


class _NotOpenedError(Refused):
    """Onnxruntime did not create the session."""


def _open_session(model: Path, entry: Entry, profile_prefix: str) -> Any:
    providers = find_session_providers(entry)
    try:
        return _create_session(model, _make_session_options(entry, profile_prefix), providers)
    except ORT_ERRORS as error:
        try:
            # onnxruntime 1.31.1 fails with precise kernels where nodes share an int8 constant. The
            # golden outputs tell whether the others will do.
            options = _make_session_options(entry, profile_prefix, precise=False)
            return _create_session(model, options, providers)
        except ORT_ERRORS:
            raise _make_refusal(error, providers[0]["name"]) from error


def _make_refusal(error: Exception, first: str) -> Refused:
    # So ends a session with session.disable_cpu_ep_fallback, whatever kept nodes from the provider.
    if "fallback to CPU EP has been explicitly disabled" in str(error):
        why = f"{first} does not take every node, or not this machine; {_STDERR}"
        return Refused(f"the session cannot be created: {why}")
    return _NotOpenedError(f"the session cannot be created: {_shorten_error(error)}")


@contextmanager
def _set_aside(folder: Path) -> Iterator[None]:
    """Have a folder empty in the context; what it held comes back if that fails, else it goes."""
    aside = folder.with_name(f"{folder.name}.aside-{os.getpid()}")
    folder.rename(aside)
    folder.mkdir()
    try:
        yield
    except BaseException:
        shutil.rmtree(folder)
        aside.rename(folder)
        raise
    shutil.rmtree(aside)


def _make_session_options(entry: Entry, profile_prefix: str, *, precise: bool = True) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = choose_threads(entry["session"])
    level = GRAPH_LEVELS[entry["session"].get("graph_optimization_level", "all")]
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    mode = EXECUTION_MODES[entry["session"].get("execution_mode", "sequential")]
    options.execution_mode = getattr(ort.ExecutionMode, mode)
    for name in _PLAIN_SETTINGS:
        if name in entry["session"]:
            setattr(options, name, entry["session"][name])
    config = make_session_config(entry)
    if not precise and PRECISE not in entry["session"]["config"]:
        config.pop(PRECISE, None)
    for key, value in config.items():
        options.add_session_config_entry(key, value)
    if _has_extensions(entry):
        library = importlib.import_module(EXTENSIONS).get_library_path()
        options.register_custom_ops_library(library)
    _register_custom_ops(entry, options)
    if profile_prefix:
        options.enable_profiling = True
        options.profile_file_prefix = profile_prefix
    return options


def _create_session(model: Path, options: Any, providers: List[Dict[str, Any]]) -> Any:
    if any(provider["name"] in nvidia.PROVIDERS for provider in providers):
        nvidia.preload(ort)
    if not any(_list_plugin_devices(provider["name"]) for provider in providers):
        pairs = [(provider["name"], provider["options"]) for provider in providers]
        return ort.InferenceSession(str(model), options, providers=pairs, enable_fallback=0)
    # A plugin that is listed under 'providers' gives a CPU session in silence (1.31.1, tried).
    for provider in providers:
        name = provider["name"]
        if _list_plugin_devices(name):
            device, passed = _find_plugin_device(provider), provider["options"]
            if name == OPENVINO and "plugin" not in provider:
                passed = make_plugin_options(passed)
            options.add_provider_for_devices([device], passed)
        elif name != CPU:
            options.add_provider(name, provider["options"])
    return ort.InferenceSession(str(model), options, enable_fallback=0)


def _find_plugin_device(provider: Mapping[str, Any]) -> Any:
    """Return the plugin's device that the variant asks for.

    Source: OpenVINO's devices say "CPU", "GPU", "GPU.0" or "NPU" in ``ov_device``
    (onnxruntime-ep-openvino 1.8.1, CPU tried); QNN's are known by the kind of hardware: an NPU
    where Linux has a /dev/fastrpc-cdsp (onnxruntime-qnn pull request 557, not tried). On x86-64
    there is only its simulator, of kind CPU, which no bundle takes for a device.
    """
    name, settings = provider["name"], provider["options"]
    devices = _list_plugin_devices(name)
    if "plugin" in provider:
        return _find_own_device(name, provider["plugin"]["device"], devices)
    if name == OPENVINO:
        wanted = settings.get("device_type", "CPU")
        kinds = {d.ep_metadata.get("ov_device", ""): d for d in devices}
    else:
        wanted = {"cpu": "CPU", "gpu": "GPU"}.get(settings.get("backend_type", ""), "NPU")
        kinds = {d.device.type.name: d for d in devices}
    for kind, device in kinds.items():
        if kind == wanted or kind.startswith(f"{wanted}."):
            return device
    raise Refused(f"{name}'s plugin lists no {wanted} on this machine, only {', '.join(kinds)}")


def _find_own_device(provider: str, wanted: Mapping[str, Optional[str]], devices: List[Any]) -> Any:
    """Return the first device of the kind and maker that a variant names; it may name neither."""
    kind, vendor = wanted.get("type"), wanted.get("vendor")
    for device in devices:
        same_kind = kind in (None, device.device.type.name)
        if same_kind and (vendor is None or vendor.lower() == device.device.vendor.lower()):
            return device
    asked = " of ".join(word for word in (kind or "device", vendor) if word)
    listed = ", ".join(f"{d.device.type.name} of {d.device.vendor or 'nobody'}" for d in devices)
    raise Refused(f"{provider}'s plugin lists no {asked} on this machine, only {listed}")


def make_plugin_options(settings: Dict[str, str]) -> Dict[str, str]:
    """Return the classic provider's options as the plugin takes them.

    Raises:
        Refused: The plugin has no such option.
    """
    config = json.loads(settings.get("load_config", "{}"))
    properties: Dict[str, str] = {}
    passed: Dict[str, str] = {}
    for key, value in settings.items():
        if key in names.OPENVINO_PROPERTIES:
            properties[names.OPENVINO_PROPERTIES[key]] = value
        elif key == "precision":
            properties.update(names.OPENVINO_PRECISIONS[value])
        elif key == "reshape_input":
            passed[key] = value
        elif key not in ("device_type", "load_config"):
            raise Refused(f"OpenVINO's plugin has no option {key!r}: say it in load_config")
    device = settings.get("device_type", "CPU").partition(".")[0]
    if properties:
        config[device] = {**properties, **config.get(device, {})}
    if config:
        passed["load_config"] = json.dumps(config)
    return passed


def find_session_providers(entry: Entry) -> List[Dict[str, Any]]:
    """Return the providers to name: without the CPU where all nodes are to be elsewhere."""
    providers: List[Dict[str, Any]] = entry["providers"]
    if is_cpu_forbidden(entry):
        return [provider for provider in providers if provider["name"] != CPU]
    return providers


def choose_threads(session: Mapping[str, Any]) -> int:
    """Return how many threads share an operator in a session; 0 leaves it to onnxruntime.

    onnxruntime makes one for each physical core of the machine, also where the process may use
    fewer, and they wait busily for each other: squeezenet1.1 took 15.0 ms with two threads on one
    core and 7.4 ms with one (1.31.1, x86-64 Linux, 2026-11-27). Then there is one for each core
    that the process may use, which is what its main thread may. A container's quota of time is no
    such limit: it leaves all cores.
    """
    asked = int(session["intra_op_num_threads"])
    is_bound = names.AFFINITIES in session["config"]
    if asked or is_bound or not hasattr(os, "sched_getaffinity"):
        return asked
    allowed = os.sched_getaffinity(os.getpid())
    return 0 if len(allowed) >= (os.cpu_count() or 1) else len(set(map(_read_core, allowed)))


def _read_core(processor: int) -> str:
    """Return the processors of one physical core; where nothing tells, the processor is one."""
    topology = _PROCESSORS / f"cpu{processor}" / "topology"
    try:
        return (topology / "thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return str(processor)


def make_session_config(entry: Entry) -> Dict[str, str]:
    """Return the session config entries of a variant on this machine."""
    config: Dict[str, str] = {}
    if _is_x86_without_vnni():
        # The default int8 kernels saturate there; these are exact at half the speed.
        config[PRECISE] = "1"
    if is_cpu_forbidden(entry):
        config["session.disable_cpu_ep_fallback"] = "1"
    if is_cpu_limited(entry):
        config["session.record_ep_graph_assignment_info"] = "1"
    config.update(entry["session"]["config"])
    return config


def is_cpu_forbidden(entry: Entry) -> bool:
    """Return whether all nodes have to be on a provider other than the CPU."""
    return bool(entry["placement"] == "all" and entry["providers"][0]["name"] != CPU)


def is_cpu_limited(entry: Entry) -> bool:
    """Return whether some of the nodes may be on the CPU, but not too many."""
    return bool(entry["placement"] != "all" and entry["providers"][0]["name"] != CPU)


def check_settings(entry: Entry) -> None:
    """Raise Refused unless onnxruntime knows every setting of a variant."""
    problems = [
        names.find_session_key_problem(key, value)
        for key, value in entry["session"]["config"].items()
    ]
    for provider in entry["providers"]:
        if "plugin" in provider:  # its options are its own
            continue
        problems += [
            names.find_provider_option_problem(provider["name"], key, value)
            for key, value in provider["options"].items()
        ]
    problems += [
        _find_word_problem(entry, "graph_optimization_level", GRAPH_LEVELS),
        _find_word_problem(entry, "execution_mode", EXECUTION_MODES),
    ]
    found = [problem for problem in problems if problem]
    if found:
        raise Refused("; ".join(found))


def _find_word_problem(entry: Entry, setting: str, words: Mapping[str, str]) -> str:
    word = entry["session"].get(setting)
    if word is None or word in words:
        return ""
    return f"{setting} is {word!r}: it takes one of {', '.join(words)}"


def find_cache_root(bundle: Path, project: str) -> Path:
    """Return where the caches of a project's models lie; never inside the bundle.

    ``<root>/<project>/cache`` for a bundle that was pushed to ``<root>/<project>/releases/``; else
    under ``EDGEPACK_CACHE``, or ``edgepack/models`` in the user's cache folder.
    """
    releases = bundle.resolve().parent
    if releases.name == "releases" and releases.parent.name == project:
        return releases.parent / "cache"
    if os.environ.get(CACHE_VARIABLE):
        return Path(os.environ[CACHE_VARIABLE]).expanduser().resolve() / project
    if platform.system() == "Darwin":
        user = Path.home() / "Library" / "Caches"
    else:
        user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return user / "edgepack" / "models" / project


def add_cache(entry: Entry, cache: Path) -> Entry:
    """Return a variant with its cache folder in the settings that ask for one; it is made.

    Raises:
        Refused: The folder cannot be made.
    """
    folder = find_cache_folder(entry, cache)
    if folder is None:
        return entry
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"its cache folder cannot be made: {error}") from error
    session = {**entry["session"], "config": _fill_settings(entry["session"]["config"], folder)}
    providers = [
        {**provider, "options": _fill_settings(provider["options"], folder)}
        for provider in entry["providers"]
    ]
    return {**entry, "session": session, "providers": providers}


def find_cache_folder(entry: Entry, cache: Path) -> Optional[Path]:
    """Return where a variant's engines and compiled models lie; None if it keeps none.

    What they depend on names the folder: the model, the runtime and the hardware, and the variant's
    settings, for providers take an engine that other settings have built (TensorRT's EP looks for a
    file by the graph's name and the precision alone).
    """
    settings = json.dumps([entry["providers"], entry["session"]["config"]], sort_keys=True)
    if CACHE not in settings:
        return None
    wanted = hashlib.sha256(settings.encode()).hexdigest()[:8]
    runtime = _make_runtime_key(entry["providers"][0]["name"])
    return cache / str(entry["model_sha256"]) / f"{runtime}_{wanted}"


def _fill_settings(settings: Mapping[str, str], folder: Path) -> Dict[str, str]:
    return {key: value.replace(CACHE, str(folder)) for key, value in settings.items()}


def _make_runtime_key(provider: str) -> str:
    """Name what a compiled model depends on: runtime, provider, system or driver, device."""
    facts = (
        f"onnxruntime-{ort.__version__}",
        provider,
        find_provider_version(provider),
        platform.mac_ver()[0] and f"macOS-{platform.mac_ver()[0]}",
        read_driver_version(),
        read_device_model(),
    )
    words = [re.sub(r"[^A-Za-z0-9.+-]+", "-", fact).strip("-.")[:48] for fact in facts]
    return "_".join(word for word in words if word)


def find_provider_version(provider: str) -> str:
    """Return the version of what a provider rests on; nothing where only onnxruntime's counts."""
    for device in _list_plugin_devices(provider):
        return str(device.ep_metadata.get("version", ""))
    if provider == "TensorrtExecutionProvider":
        return _read_tensorrt_version()
    return ""


def _read_tensorrt_version() -> str:
    """Return TensorRT's version as its library has it, such as 100300 for 10.3.

    Source: ``getInferLibVersion`` of NvInferRuntimeBase.h; the libraries' names end in the major
    version (not tried with TensorRT).
    """
    for name in ("libnvinfer.so.11", "libnvinfer.so.10", "libnvinfer.so.8"):
        try:
            return f"TensorRT-{ctypes.CDLL(name).getInferLibVersion()}"
        except (OSError, AttributeError):
            continue
    return ""


def read_driver_version(root: Path = Path("/")) -> str:
    """Return L4T's version on a Jetson, else that of NVIDIA's driver; nothing without either.

    Source: ``# R36 (release), REVISION: 4.7, ...`` in /etc/nv_tegra_release, and ``NVRM version:
    NVIDIA UNIX x86_64 Kernel Module  550.54.15  ...`` in /proc/driver/nvidia/version.
    """
    tegra = _read_text(root / "etc/nv_tegra_release")
    found = re.search(r"R(\d+).*REVISION: ([\d.]+)", tegra)
    if found:
        return f"L4T-{found[1]}.{found[2]}"
    nvidia = _read_text(root / "proc/driver/nvidia/version")
    found = re.search(r"NVRM version:.*?\s(\d+(?:\.\d+)+)\s", nvidia)
    return f"NVIDIA-{found[1]}" if found else ""


def read_device_model(root: Path = Path("/")) -> str:
    """Return what tells this machine's hardware from other hardware that may share its home folder.

    A board's name, else the computer's and processor's, with NVIDIA's GPU where there is one.
    """
    board = _read_text(root / "proc/device-tree/model").strip("\0\n ")
    if board:
        return board
    if platform.system() == "Darwin":
        return _read_sysctl("hw.model").partition(":")[2].strip()
    lines = _read_text(root / "proc/cpuinfo").splitlines()
    processors = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    gpus = [
        _read_text(Path(path))
        for path in glob.glob(f"{root}/proc/driver/nvidia/gpus/*/information")
    ]
    models = [found[1] for found in (re.search(r"Model:\s*(.+)", text) for text in gpus) if found]
    return " ".join([*models[:1], *processors[:1]])


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _shorten_error(error: Exception) -> str:
    """Return an error's beginning and end, where the cause is, as one line."""
    text = " ".join(str(error).split())
    return text if len(text) <= _LONGEST else f"{text[:80]} ... {text[80 - _LONGEST :]}"


def read_cpu_flags() -> Set[str]:
    """Return this CPU's flags as Linux spells them; on macOS, those that have a Linux name."""
    if platform.system() == "Darwin":
        listed = _read_sysctl("hw.optional")
        return {name for key, name in _DARWIN_NAMES.items() if f"{key}: 1" in listed}
    flags: Set[str] = set()
    for line in read_cpuinfo():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            flags.update(value.split())
    return flags


def is_emulated() -> bool:
    """Return whether an ARM system runs on an x86 kernel, as under qemu-user: its time is not real.

    An emulator that also emulates /proc/cpuinfo is not noticed.
    """
    if platform.machine().lower() not in ("aarch64", "arm64", "armv7l"):
        return False
    return any(line.startswith("vendor_id") for line in read_cpuinfo())


def read_cpuinfo() -> List[str]:
    """Return the lines of ``/proc/cpuinfo``; none where there is no such file."""
    return _read_text(Path("/proc/cpuinfo")).splitlines()


# Source: Apple, "Determining instruction set characteristics", and Linux's arm64 elf_hwcaps.
_DARWIN_NAMES = {
    "hw.optional.arm.FEAT_DotProd": "asimddp",
    "hw.optional.arm.FEAT_FP16": "asimdhp",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.arm.FEAT_BF16": "bf16",
}


def _read_sysctl(name: str) -> str:
    argv = ["/usr/sbin/sysctl", name]
    return subprocess.run(argv, stdout=subprocess.PIPE, check=False, timeout=10).stdout.decode(
        "utf-8", "replace"
    )


def _is_x86_without_vnni() -> bool:
    if platform.machine().lower() not in ("x86_64", "amd64", "i686"):
        return False
    return not read_cpu_flags() & {"avx512_vnni", "avx_vnni"}
