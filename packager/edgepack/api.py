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

from edgepack.builder.build import build, dry_run
from edgepack.builder.inspect import inspect
from edgepack.builder.scaffold import init
from edgepack.bundle.reading import load_bundle
from edgepack.bundle.signing import require_signature, sign
from edgepack.demo.demo import demo
from edgepack.deploy.audit import intervals as audit_intervals
from edgepack.deploy.audit import read as read_audit_log
from edgepack.deploy.fleet.bundles import bundles_by_target
from edgepack.deploy.fleet.rollout import start_rollout
from edgepack.deploy.fleet.schedule import Settings as RolloutSettings
from edgepack.deploy.fleet.selection import select_devices
from edgepack.deploy.fleet.store import PushOptions, Rollout, RolloutStore
from edgepack.deploy.leases import leased, release, reserve, who
from edgepack.deploy.operations import add_ssh_device as add_device
from edgepack.deploy.operations import provision, trust
from edgepack.deploy.release import deploy as push
from edgepack.deploy.release import roll_back as rollback
from edgepack.deploy.rollouts import resume_rollout
from edgepack.deploy.verify import verify_device
from edgepack.devices.inventory import load_device, load_devices
from edgepack.devices.transports import connect
from edgepack.errors import EdgepackError
from edgepack.measure.bench.run import bench
from edgepack.measure.check import check as check_device
from edgepack.measure.compare.comparing import Question as CompareQuestion
from edgepack.measure.compare.comparing import compare
from edgepack.measure.evaluate.evaluate import evaluate
from edgepack.measure.tune.searching import Question as TuneQuestion
from edgepack.measure.tune.tuning import tune
from edgepack.records.scenarios import make_scenario
from edgepack.results.page.html import write_html
from edgepack.results.page.reporting import report
from edgepack.results.store.changes import find_changes
from edgepack.results.store.documents import read_report
from edgepack.results.store.exporting import export_runs
from edgepack.results.store.importing import import_log
from edgepack.results.store.store import ResultsStore, RunFilter
from edgepack.trying.trial import Trial
from edgepack.trying.trying import try_bundle
from edgepack.trying.verify import verify_here as verify

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
