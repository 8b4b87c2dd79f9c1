"""The commands and their options. Bodies import what they use, so that ``--help`` is quick."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from edgepack import api
from edgepack.cli.auditing import audit_app
from edgepack.cli.benching import bench
from edgepack.cli.comparing import compare
from edgepack.cli.converters import converter_app
from edgepack.cli.devices import device_app
from edgepack.cli.enrolling import enroll, pulled, unenroll
from edgepack.cli.explaining import explain
from edgepack.cli.exporting import export
from edgepack.cli.groups import Edgepack
from edgepack.cli.history import runs_app
from edgepack.cli.jobs import jobs_app
from edgepack.cli.leasing import lease, power, release, who
from edgepack.cli.measuring import demo, evaluate
from edgepack.cli.once import OnceCommand
from edgepack.cli.optimizing import optimize
from edgepack.cli.options import (
    JsonOption,
    ModelArgument,
    ProjectOption,
    PythonOption,
    TargetOption,
    VerboseOption,
)
from edgepack.cli.publishing import PlainHttpOption, channel_app, fetch, publish
from edgepack.cli.pushing import push, rollback
from edgepack.cli.reporting import report
from edgepack.cli.rollouts import rollout_app
from edgepack.cli.runtimes import runtime_app
from edgepack.cli.serving import serve
from edgepack.cli.signing import AllowedSignersOption, sign
from edgepack.cli.stats import show_stats
from edgepack.cli.targets import targets_app
from edgepack.cli.trying import try_bundle
from edgepack.cli.tuning import tune
from edgepack.cli.verifying import verify_device

app = typer.Typer(
    cls=Edgepack,
    help="One ONNX model in, bundles out that run well, and provably, on edge devices.",
    epilog="Start with: edgepack demo  |  Version and commit: edgepack --version",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(targets_app, name="targets")
app.add_typer(device_app, name="device")
app.add_typer(runs_app, name="runs")
app.add_typer(rollout_app, name="rollout")
app.add_typer(jobs_app, name="jobs")
app.add_typer(audit_app, name="audit")
app.add_typer(runtime_app, name="runtime")
app.add_typer(converter_app, name="converter")
app.add_typer(channel_app, name="channel")


@app.command(epilog="Example: edgepack init detector.onnx --images photos/")
def init(
    model: Annotated[Path, typer.Argument(help="The model.", show_default=False)],
    images: Annotated[
        Path | None, typer.Option(help="A folder of images to calibrate and evaluate with.")
    ] = None,
    sounds: Annotated[
        Path | None, typer.Option(help="A folder of .wav files to do so with.")
    ] = None,
    python: PythonOption = None,
) -> None:
    """Write an edgepack.yaml, filled in from the model."""
    from edgepack.base.progress import make_terminal_progress

    path = api.init(
        model, images=images, sounds=sounds, python=python, progress=make_terminal_progress()
    )
    command = f"edgepack build --project {shlex.quote(str(path))} --target host"
    typer.echo(f"wrote {path}; check it, then run: {command}")


@app.command(epilog="Example: edgepack inspect detector.onnx --target raspberry-pi")
def inspect(
    model: ModelArgument = None,
    target: TargetOption = None,
    project: ProjectOption = None,
    python: PythonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a model's facts and, per variant, the nodes its provider does not take, and why."""
    from edgepack.base.progress import make_terminal_progress
    from edgepack.cli.printing import print_inspection, print_json

    progress = make_terminal_progress()
    inspection = api.inspect(model, target or (), project=project, python=python, progress=progress)
    if as_json:
        print_json(inspection)
    else:
        print_inspection(inspection)


@app.command(
    epilog="Examples: edgepack build detector.onnx --target host  |  "
    "edgepack build --target jetson --target intel  |  edgepack build --target all --dry-run  |  "
    "edgepack build --target android-xnnpack --aar  |  edgepack build projects/*/edgepack.yaml"
)
def build(
    models: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="The ONNX model, or project files; several are built at once [default: the"
            " edgepack.yaml here]",
            show_default=False,
        ),
    ] = None,
    target: TargetOption = None,
    variant: Annotated[
        list[str] | None, typer.Option(help="Only this variant; repeat for more.")
    ] = None,
    project: ProjectOption = None,
    out: Annotated[Path, typer.Option(help="Where bundles go.")] = Path("dist"),
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Steps that run at a time [default: one per core, up to 4]"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Run every step again.")] = False,
    aar: Annotated[
        bool, typer.Option("--aar", help="Also compile Android bundles, into OUT/maven.")
    ] = False,
    jars: Annotated[
        Path | None,
        typer.Option(help="Jars for --aar [default: Maven's own repository]"),
    ] = None,
    simulate: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Evaluate each model that long in a vendor's simulator, where there is one; 0:"
            " not at all.",
        ),
    ] = 120,
    python: PythonOption = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="A Dask scheduler whose workers do steps, such as tcp://host:8786.",
        ),
    ] = None,
    service: Annotated[
        bool,
        typer.Option("--service", help="Add what serves Linux bundles: container, systemd unit."),
    ] = False,
    deb: Annotated[
        bool, typer.Option("--deb", help="Also export Linux bundles as Debian packages, into OUT.")
    ] = False,
    ipk: Annotated[
        bool, typer.Option("--ipk", help="Also export Linux bundles as opkg's packages, into OUT.")
    ] = False,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Build bundles: quantize, prove, evaluate, package."""
    from edgepack.base.progress import make_terminal_progress
    from edgepack.cli.building import (
        build_pipeline,
        build_projects,
        package_bundles,
        print_build,
        require_packager,
    )
    from edgepack.cli.printing import print_json, print_plan

    packages = {"--deb": deb, "--ipk": ipk}
    if models and len(models) > 1:
        build_projects(
            models,
            {
                "--project": project,
                "--dry-run": dry_run,
                "--aar": aar,
                "--jars": jars,
                "--python": python,
                **packages,
            },
            lambda: api.build_projects(
                models,
                targets=target or (),
                variants=variant or (),
                out=out,
                jobs=jobs,
                use_cache=not no_cache,
                simulate_s=simulate,
                on=on,
                service=service,
                progress=make_terminal_progress(),
            ),
            verbose=verbose,
            as_json=as_json,
        )
        return
    model = models[0] if models else None
    if model and project is None and model.suffix in (".yaml", ".yml"):
        model, project = None, model
    if api.is_pipeline(model, project):
        build_pipeline(
            {
                "--variant": variant,
                "--dry-run": dry_run,
                "--aar": aar,
                "--jars": jars,
                "--python": python,
                **packages,
            },
            lambda: api.build_pipeline(
                project,
                targets=target or (),
                out=out,
                jobs=jobs,
                use_cache=not no_cache,
                simulate_s=simulate,
                on=on,
                service=service,
                progress=make_terminal_progress(),
            ),
            verbose=verbose,
            as_json=as_json,
        )
        return
    if dry_run:
        plan = api.dry_run(
            model,
            project=project,
            targets=target or (),
            variants=variant or (),
            aar=aar,
            jars=jars,
            simulate_s=simulate,
            python=python,
            service=service,
            progress=make_terminal_progress(),
        )
        print_plan(plan, as_json=as_json)
        return
    require_packager(packages)
    result = api.build(
        model,
        project=project,
        targets=target or (),
        variants=variant or (),
        out=out,
        jobs=jobs,
        use_cache=not no_cache,
        aar=aar,
        jars=jars,
        simulate_s=simulate,
        python=python,
        on=on,
        service=service,
        progress=make_terminal_progress(),
    )
    if not as_json:
        print_build(result, verbose=verbose)
    result = package_bundles(result, packages, out, as_json=as_json)
    if as_json:
        print_json(result)
    result.require_all()


@app.command(
    epilog="Examples: edgepack verify dist/detector-1.0.0-raspberry-pi  |  "
    "edgepack verify oci://registry.example.com/detector:1.0.0 --allowed-signers signers"
)
def verify(
    bundle: Annotated[
        str,
        typer.Argument(
            help="A bundle's folder or archive, or an address: oci://HOST/REPOSITORY:TAG or"
            " s3://BUCKET/PREFIX:TAG."
        ),
    ],
    allowed_signers: AllowedSignersOption = None,
    plain_http: PlainHttpOption = False,
    as_json: JsonOption = False,
) -> None:
    """Check a bundle's hashes, signature and golden outputs here.

    With --allowed-signers, one of those signers must have signed it; without, it prints who did.
    """
    from edgepack.cli.printing import print_json, print_verification
    from edgepack.cli.publishing import verify_published

    if api.is_reference(bundle):
        verified = verify_published(bundle, allowed_signers, plain_http=plain_http)
    else:
        verified = [api.verify(Path(bundle), allowed_signers)]
    if as_json:
        print_json(verified if len(verified) > 1 else verified[0])
        return
    for each in verified:
        print_verification(each)


app.command(
    "try",
    epilog="Examples: edgepack try dist/detector-1.0.0-raspberry-pi dog.jpg --html try.html  |  "
    "edgepack try dist/vad-1.0.0-linux-x86-64 sound.wav --input state=0 --input sr=16000",
)(try_bundle)
app.command(
    epilog="Examples: edgepack export dist/detector-1.0.0-raspberry-pi --format deb  |  "
    "edgepack export dist/detector-1.0.0-raspberry-pi --format ipk --depends libonnxruntime1  |  "
    "edgepack export dist/detector-1.0.0-raspberry-pi --format mender --compatible rpi4  |  "
    "edgepack export dist/detector-1.0.0-raspberry-pi --format rauc --compatible my-board "
    "--slot appfs --key key.pem --cert cert.pem"
)(export)
app.command(epilog="Example: edgepack sign dist/detector-1.0.0-raspberry-pi")(sign)
app.command(
    epilog="Examples: edgepack serve dist/detector-1.0.0-linux-x86-64  |  "
    "edgepack serve ~/edgepack/detector/current --host 0.0.0.0 --token-file token"
)(serve)
app.command(
    epilog="Examples: edgepack publish dist/detector-1.0.0-raspberry-pi"
    " oci://registry.example.com/detector  |  "
    "edgepack publish dist oci://registry.example.com/detector:1.0.0  |  "
    "edgepack publish dist s3://team/bundles/detector  |  "
    "edgepack publish oci://registry.example.com/detector --after canary --channel stable --key"
    " ~/.ssh/id_ed25519"
)(publish)
app.command(epilog="Example: edgepack fetch oci://registry.example.com/detector:1.0.0 --out dist")(
    fetch
)
app.command(
    epilog="Examples: edgepack push dist/detector-1.0.0-raspberry-pi --device pi5  |  "
    "edgepack push dist --device tag:lab --canary 1 --waves 3"
)(push)
app.command(
    epilog="Examples: edgepack bench dist/detector-1.0.0-raspberry-pi --device pi5  |  "
    "edgepack bench dist/detector-1.0.0-raspberry-pi --device pi5 --tune --html report.html  |  "
    "edgepack bench dist/detector-1.0.0-raspberry-pi --device pi5 --scenario server --qps 50 "
    "--latency-bound-ms 20  |  "
    "edgepack bench dist/detector-1.0.0-raspberry-pi --device pi5 --batch 1 --batch 4  |  "
    "edgepack bench dist --device tag:lab --variant all --html report.html --junit bench.xml"
)(bench)
app.command(
    epilog="Examples: edgepack optimize --device pi5 --budget 20m --write  |  "
    "edgepack optimize --device tag:lab"
)(optimize)
app.command(epilog="Example: edgepack tune dist/detector-1.0.0-raspberry-pi --device pi5")(tune)
app.command(
    epilog="Examples: edgepack evaluate dist/detector-1.0.0-raspberry-pi --device pi5  |  "
    "edgepack evaluate dist --device tag:lab --variant all"
)(evaluate)
app.command(
    epilog="Examples: edgepack compare dist/old dist/new --device pi5  |  "
    "edgepack compare current dist/new --device tag:lab --junit compare.xml"
)(compare)
app.command(epilog="Examples: edgepack explain  |  edgepack explain 20261121T093012Z-a1b2c3 --all")(
    explain
)
app.command(
    epilog="Examples: edgepack report --html report.html  |  "
    "edgepack report --project detector --device pi5 --last 20"
)(report)
device_app.command(epilog="Example: edgepack device lease pi5 --for 60")(lease)
device_app.command(epilog="Example: edgepack device release pi5")(release)
device_app.command(epilog="Examples: edgepack device who pi5  |  edgepack device who all")(who)
device_app.command(
    epilog="Examples: edgepack device power pi5 cycle  |  edgepack device power tag:lab off"
)(power)
device_app.command(
    epilog="Example: edgepack device enroll pi5 oci://registry.example.com/team/detector"
    " --channel stable --allowed-signers release-keys"
)(enroll)
device_app.command(epilog="Example: edgepack device unenroll pi5 --project detector")(unenroll)
device_app.command(
    epilog="Examples: edgepack device pulled pi5  |  edgepack device pulled all --json"
)(pulled)
device_app.command(
    "verify",
    epilog="Examples: edgepack device verify pi5  |  "
    "edgepack device verify tag:lab --project detector",
)(verify_device)
device_app.command(
    "stats",
    epilog="Examples: edgepack device stats pi5  |  edgepack device stats tag:lab --json",
)(show_stats)
app.command(
    epilog="Examples: edgepack rollback detector --device pi5  |  "
    "edgepack rollback detector --device tag:lab --to 0123456789abcdef"
)(rollback)
app.command(epilog="Example: edgepack demo")(demo)
for _group in (
    app,
    targets_app,
    device_app,
    runs_app,
    rollout_app,
    jobs_app,
    audit_app,
    runtime_app,
    converter_app,
):
    for _command in _group.registered_commands:
        _command.cls = OnceCommand
