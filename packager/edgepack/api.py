"""The public functions, each under the name of its command.

::

    from edgepack.api import build, bench, load_device

    result = build(project=Path("edgepack.yaml"), targets=["raspberry-pi"])
    report = bench(result.bundles[0].bundle.path, load_device("pi5"))

A push to many devices is a rollout, which is kept in a store::

    store = RolloutStore()
    bundles, devices = bundles_by_target([Path("dist")]), select_devices(["tag:lab"])
    rollout = start_rollout(bundles, devices, store, settings=RolloutSettings(canary=1))
    rollout = resume_rollout(rollout.id, store)
    print(rollout.counts, rollout.pending)

What changes a device is recorded in the audit log, as it is by the commands.
"""

from edgepack.audit import intervals as audit_intervals
from edgepack.audit import read as read_audit_log
from edgepack.bench.device_accuracy import evaluate
from edgepack.bench.run import bench
from edgepack.bench.scenarios import make_scenario
from edgepack.build.build import build, dry_run
from edgepack.bundle.reading import load_bundle
from edgepack.bundle.signing import require_signature, sign
from edgepack.comparison.comparing import Question as CompareQuestion
from edgepack.comparison.comparing import compare
from edgepack.demo import demo
from edgepack.deploying import deploy as push
from edgepack.deploying import roll_back as rollback
from edgepack.devices.inventory import load_device, load_devices
from edgepack.devices.leases import leased, release, reserve, who
from edgepack.devices.transports import connect
from edgepack.devices.verifying import verify_device
from edgepack.errors import EdgepackError
from edgepack.fleet.bundles import bundles_by_target
from edgepack.fleet.rollout import start_rollout
from edgepack.fleet.scheduling import Settings as RolloutSettings
from edgepack.fleet.selection import select_devices
from edgepack.fleet.store import PushOptions, Rollout, RolloutStore
from edgepack.inspection import inspect
from edgepack.operations import add_ssh_device as add_device
from edgepack.operations import check as check_device
from edgepack.operations import provision, trust
from edgepack.results.changes import find_changes
from edgepack.results.documents import read_report
from edgepack.results.exporting import export_runs
from edgepack.results.html import write_html
from edgepack.results.importing import import_log
from edgepack.results.reporting import report
from edgepack.results.store import ResultsStore, RunFilter
from edgepack.rollouts import resume_rollout
from edgepack.scaffold import init
from edgepack.trying.trial import Trial
from edgepack.trying.trying import try_bundle
from edgepack.tuning.searching import Question as TuneQuestion
from edgepack.tuning.tuning import tune
from edgepack.verification import verify_here as verify

__all__ = [
    "CompareQuestion",
    "EdgepackError",
    "PushOptions",
    "ResultsStore",
    "Rollout",
    "RolloutSettings",
    "RolloutStore",
    "RunFilter",
    "Trial",
    "TuneQuestion",
    "add_device",
    "audit_intervals",
    "bench",
    "build",
    "bundles_by_target",
    "check_device",
    "compare",
    "connect",
    "demo",
    "dry_run",
    "evaluate",
    "export_runs",
    "find_changes",
    "import_log",
    "init",
    "inspect",
    "leased",
    "load_bundle",
    "load_device",
    "load_devices",
    "make_scenario",
    "provision",
    "push",
    "read_audit_log",
    "read_report",
    "release",
    "report",
    "require_signature",
    "reserve",
    "resume_rollout",
    "rollback",
    "select_devices",
    "sign",
    "start_rollout",
    "trust",
    "try_bundle",
    "tune",
    "verify",
    "verify_device",
    "who",
    "write_html",
]
