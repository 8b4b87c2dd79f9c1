"""From step outputs to a bundle on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgepack.apps.names import App, make_app, require_version
from edgepack.apps.npm import ROOT, make_package_file_name
from edgepack.apps.render import render_family
from edgepack.base.files import hash_file, holding
from edgepack.builder.cache import StepCache
from edgepack.builder.custom_ops import FOLDER, find_libraries
from edgepack.builder.golden_files import write_goldens
from edgepack.builder.job import JudgedBundle
from edgepack.builder.manifest import make_manifest
from edgepack.builder.manifest_variants import make_manifest_variants
from edgepack.builder.model_files import write_models
from edgepack.builder.readme import make_bundle_context
from edgepack.builder.service_files import add_service, has_service
from edgepack.builder.unchanged import find_standing, hash_origins, remember
from edgepack.bundle.archive import copy_file, write_archive
from edgepack.bundle.reading import Bundle, load_bundle
from edgepack.bundle.writing import BundleWriter, replacing


@dataclass(frozen=True)
class BuiltBundle:
    """One bundle as written."""

    bundle: Bundle
    archive: Path
    package: Path | None = None
    """The npm package of a bundle for browsers."""


def assemble(judged: JudgedBundle, cache: StepCache, out: Path) -> BuiltBundle:
    """Write the bundle of one target, its archive and for browsers its npm package.

    Each is replaced whole or not at all.

    What stands there and would be written again byte for byte is left alone.

    Raises:
        BundleError: Two files have one name.
        ToolError: The place cannot be written.
        UsageError: Something else is there.
    """
    project = judged.project
    final = out / f"{project.name}-{project.version}-{judged.profile.id}"
    archive = out / f"{final.name}.tar.gz"
    package = _find_package(judged, out)
    # An archive never lies beside a folder that it does not hold, whoever builds here at once.
    with holding(final):
        origins = hash_origins(judged)
        bundle = find_standing(origins, cache, final)
        if bundle is None:
            with replacing(final) as folder:
                _write(judged, BundleWriter(folder))
                archive.unlink(missing_ok=True)
                if package:
                    package.unlink(missing_ok=True)
            bundle = load_bundle(final)
            # A file of the project may have changed meanwhile.
            if hash_origins(judged) == origins:
                remember(origins, cache, bundle)
        _write_archive(bundle, cache, archive, bundle.path.name)
        if package:
            _write_archive(bundle, cache, package, ROOT)
    return BuiltBundle(bundle, archive, package)


def _find_package(judged: JudgedBundle, out: Path) -> Path | None:
    if judged.profile.family != "web":
        return None
    version = require_version(judged.profile, judged.project.version)
    return out / make_package_file_name(judged.project, version)


def _write(judged: JudgedBundle, writer: BundleWriter) -> None:
    models = write_models(judged, writer)
    goldens = write_goldens(judged, writer)
    loaded = judged.job.loaded
    for name in loaded.project.files:
        data = loaded.find_file(name).read_bytes()
        writer.add(f"files/{loaded.find_place(name)}", data, role="file")
    for machine, library in find_libraries(loaded).items():
        writer.add(f"{FOLDER}/{machine}/{library.name}", library.read_bytes(), role="library")
    context = make_bundle_context(judged, models, writer.files.values())
    for file in render_family(judged.profile.family, context, _make_app(judged)):
        writer.add(file.path, file.data, role=file.role, mode=file.mode)
    if has_service(judged.project, judged.profile):
        add_service(writer, judged.project, judged.profile)
    variants = make_manifest_variants(judged, models, len(goldens))
    writer.finish(lambda files: make_manifest(judged, variants, goldens, files))


def _make_app(judged: JudgedBundle) -> App | None:
    """Return what the code of an app's bundle is made from; others carry Python as it is."""
    if judged.profile.family == "linux":
        return None
    return make_app(judged.project, judged.profile, *judged.signature)


def _write_archive(bundle: Bundle, cache: StepCache, archive: Path, root: str) -> None:
    """Write an archive by way of the cache: its bytes follow from the bundle's digest."""
    name = "bundle.tar.gz"
    key = f"{'npm' if root == ROOT else 'archive'}-{bundle.digest}"
    found = cache.find(key) or cache.keep(
        key, lambda folder: write_archive(bundle.path, folder / name, root=root)
    )
    if _is_there(archive, found.files[name]):
        return
    found.require_whole()
    copy_file(found.path / name, archive)


def _is_there(archive: Path, sha256: str) -> bool:
    try:
        return hash_file(archive) == sha256
    except OSError:
        return False
