"""The public functions, each under the name of its command; the commands themselves use no others.

From a model to a number::

    from pathlib import Path

    from edgepack import api

    result = api.build(Path("detector.onnx"), targets=["host"])
    bundle = result.bundles[0].bundle.path
    print(api.verify(bundle).files, "files have their hashes")
    report = api.bench(bundle, api.load_device("local"), preset="quick")
    print(report.variant_used, report.verdict.kind)

A push to many devices is a rollout, which is kept in a store; so are rollbacks and provisioning::

    store = api.open_rollout_store()
    bundles, devices = api.load_bundles_by_target([Path("dist")]), api.select_devices(["tag:lab"])
    settings = api.RolloutSettings(canary=1)
    rollout = api.start_rollout(bundles, devices, store, settings=settings)
    rollout = api.resume_rollout(rollout.id, store)
    print(rollout.counts, rollout.pending)

What leaves nothing to be gone on with is done on many devices by a function::

    for outcome in api.do_on_devices(devices, lambda device, progress: api.check_device(device)):
        print(outcome.device, outcome.error or "ready")

What changes a device is recorded in the audit log, as it is by the commands. A name is imported
from where it is defined when it is first used, so that importing this module is quick.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgepack.backends.listing import ListedTarget as ListedTarget
    from edgepack.backends.listing import list_targets as list_targets
    from edgepack.backends.listing import make_target_schema as make_target_schema
    from edgepack.backends.listing import show_target as show_target
    from edgepack.backends.targets import check_target as check_target
    from edgepack.base.progress import Progress as Progress
    from edgepack.base.schema import NotMeasured as NotMeasured
    from edgepack.builder.assembly import BuiltBundle as BuiltBundle
    from edgepack.builder.build import BuildResult as BuildResult
    from edgepack.builder.build import build as build
    from edgepack.builder.build import dry_run as dry_run
    from edgepack.builder.inspect import Inspection as Inspection
    from edgepack.builder.inspect import VariantInspection as VariantInspection
    from edgepack.builder.inspect import inspect as inspect
    from edgepack.builder.many import BuiltProject as BuiltProject
    from edgepack.builder.many import build_projects as build_projects
    from edgepack.builder.memory import format_memory as format_memory
    from edgepack.builder.pipelines import PipelineResult as PipelineResult
    from edgepack.builder.pipelines import build_pipeline as build_pipeline
    from edgepack.builder.plan import Plan as Plan
    from edgepack.builder.scaffold import init as init
    from edgepack.builder.timing import SlowerVariant as SlowerVariant
    from edgepack.bundle.manifest import MANIFEST_SIGNATURE as MANIFEST_SIGNATURE
    from edgepack.bundle.manifest import Accuracy as Accuracy
    from edgepack.bundle.manifest import Attempt as Attempt
    from edgepack.bundle.manifest import Manifest as Manifest
    from edgepack.bundle.manifest import ManifestVariant as ManifestVariant
    from edgepack.bundle.manifest import Simulated as Simulated
    from edgepack.bundle.reading import AnyBundle as AnyBundle
    from edgepack.bundle.reading import Bundle as Bundle
    from edgepack.bundle.reading import PipelineBundle as PipelineBundle
    from edgepack.bundle.reading import load_bundle as load_bundle
    from edgepack.bundle.signing import Signature as Signature
    from edgepack.bundle.signing import require_signature as require_signature
    from edgepack.bundle.signing import sign as sign
    from edgepack.bundle.unused import Unused as Unused
    from edgepack.converters.listing import ListedConverter as ListedConverter
    from edgepack.converters.listing import install_converter as install_converter
    from edgepack.converters.listing import list_converters as list_converters
    from edgepack.demo.demo import Demo as Demo
    from edgepack.demo.demo import demo as demo
    from edgepack.demo.prove import Proof as Proof
    from edgepack.demo.prove import prove as prove
    from edgepack.deploy.adding import AddedDevice as AddedDevice
    from edgepack.deploy.adding import add_device as add_device
    from edgepack.deploy.adding import remove_device as remove_device
    from edgepack.deploy.adding import share_device as share_device
    from edgepack.deploy.audit import AuditLog as AuditLog
    from edgepack.deploy.audit import read_audit_log as read_audit_log
    from edgepack.deploy.audit import verify_audit_log as verify_audit_log
    from edgepack.deploy.audit_lines import Record as Record
    from edgepack.deploy.audit_lines import parse_moment as parse_moment
    from edgepack.deploy.fleet.bundles import find_bundle as find_bundle
    from edgepack.deploy.fleet.bundles import load_bundles_by_target as load_bundles_by_target
    from edgepack.deploy.fleet.many import Outcome as Outcome
    from edgepack.deploy.fleet.many import choose_exit_code as choose_exit_code
    from edgepack.deploy.fleet.many import choose_worst_code as choose_worst_code
    from edgepack.deploy.fleet.many import do_on_devices as do_on_devices
    from edgepack.deploy.fleet.rollout import start_provisioning as start_provisioning
    from edgepack.deploy.fleet.rollout import start_rollback as start_rollback
    from edgepack.deploy.fleet.rollout import start_rollout as start_rollout
    from edgepack.deploy.fleet.run import News as News
    from edgepack.deploy.fleet.run import Watcher as Watcher
    from edgepack.deploy.fleet.schedule import Retry as Retry
    from edgepack.deploy.fleet.schedule import RolloutSettings as RolloutSettings
    from edgepack.deploy.fleet.schedule import Settled as Settled
    from edgepack.deploy.fleet.schedule import Start as Start
    from edgepack.deploy.fleet.selection import complete_selection as complete_selection
    from edgepack.deploy.fleet.selection import is_one_device as is_one_device
    from edgepack.deploy.fleet.selection import select_devices as select_devices
    from edgepack.deploy.fleet.store import ProvisionOptions as ProvisionOptions
    from edgepack.deploy.fleet.store import PushOptions as PushOptions
    from edgepack.deploy.fleet.store import RollbackOptions as RollbackOptions
    from edgepack.deploy.fleet.store import Rollout as Rollout
    from edgepack.deploy.fleet.store import RolloutListing as RolloutListing
    from edgepack.deploy.fleet.store import RolloutStore as RolloutStore
    from edgepack.deploy.histories import DeviceHistory as DeviceHistory
    from edgepack.deploy.histories import read_device_history as read_device_history
    from edgepack.deploy.importing import ImportedDevice as ImportedDevice
    from edgepack.deploy.importing import import_devices as import_devices
    from edgepack.deploy.intervals import UseInterval as UseInterval
    from edgepack.deploy.intervals import list_audit_intervals as list_audit_intervals
    from edgepack.deploy.leases import Lease as Lease
    from edgepack.deploy.leases import lease_device as lease_device
    from edgepack.deploy.leases import leased as leased
    from edgepack.deploy.leases import list_leases as list_leases
    from edgepack.deploy.leases import release_device as release_device
    from edgepack.deploy.merging import MergedRecord as MergedRecord
    from edgepack.deploy.merging import merge_histories as merge_histories
    from edgepack.deploy.operations import provision_device as provision_device
    from edgepack.deploy.operations import trust_device as trust_device
    from edgepack.deploy.power import PowerAction as PowerAction
    from edgepack.deploy.power import PowerOptions as PowerOptions
    from edgepack.deploy.power import PowerSwitched as PowerSwitched
    from edgepack.deploy.power import switch_power as switch_power
    from edgepack.deploy.push import push as push
    from edgepack.deploy.push import rollback as rollback
    from edgepack.deploy.rollouts import abort_rollout as abort_rollout
    from edgepack.deploy.rollouts import list_rollouts as list_rollouts
    from edgepack.deploy.rollouts import open_rollout_store as open_rollout_store
    from edgepack.deploy.rollouts import provision_as_rollout as provision_as_rollout
    from edgepack.deploy.rollouts import push_as_rollout as push_as_rollout
    from edgepack.deploy.rollouts import read_rollout as read_rollout
    from edgepack.deploy.rollouts import resume_rollout as resume_rollout
    from edgepack.deploy.rollouts import rollback_as_rollout as rollback_as_rollout
    from edgepack.deploy.runtimes import build_runtime as build_runtime
    from edgepack.deploy.runtimes import look_at_build as look_at_build
    from edgepack.deploy.runtimes import stop_build as stop_build
    from edgepack.deploy.stats import Counts as Counts
    from edgepack.deploy.stats import DeviceStats as DeviceStats
    from edgepack.deploy.stats import VariantCounts as VariantCounts
    from edgepack.deploy.stats import read_stats as read_stats
    from edgepack.deploy.transfer.client import PushedRelease as PushedRelease
    from edgepack.deploy.transfer.client import Switched as Switched
    from edgepack.deploy.transfer.client import require_release as require_release
    from edgepack.deploy.transfer.relay import Relays as Relays
    from edgepack.deploy.verify import DeviceState as DeviceState
    from edgepack.deploy.verify import ProjectState as ProjectState
    from edgepack.deploy.verify import verify_device as verify_device
    from edgepack.devices.ansible import read_ansible_devices as read_ansible_devices
    from edgepack.devices.checking import Checked as Checked
    from edgepack.devices.importing import ListedDevice as ListedDevice
    from edgepack.devices.importing import choose_listed as choose_listed
    from edgepack.devices.importing import read_csv_devices as read_csv_devices
    from edgepack.devices.importing import read_ssh_config_devices as read_ssh_config_devices
    from edgepack.devices.inventory import Device as Device
    from edgepack.devices.inventory import describe_inventory as describe_inventory
    from edgepack.devices.inventory import load_device as load_device
    from edgepack.devices.inventory import load_devices as load_devices
    from edgepack.devices.provisioning.building import BuildState as BuildState
    from edgepack.devices.provisioning.provision import Provisioned as Provisioned
    from edgepack.devices.provisioning.store import KeptRuntime as KeptRuntime
    from edgepack.devices.provisioning.store import RuntimeStore as RuntimeStore
    from edgepack.devices.provisioning.wheelhouse import FetchedWheels as FetchedWheels
    from edgepack.devices.provisioning.wheelhouse import Wheelhouse as Wheelhouse
    from edgepack.devices.provisioning.wheels import WheelNeeds as WheelNeeds
    from edgepack.devices.transport import Transport as Transport
    from edgepack.devices.transports import connect as connect
    from edgepack.errors import EdgepackError as EdgepackError
    from edgepack.errors import LostJobError as LostJobError
    from edgepack.fleets.export import Exported as Exported
    from edgepack.fleets.export import ExportSettings as ExportSettings
    from edgepack.fleets.export import export_bundle as export_bundle
    from edgepack.fleets.export import is_for_linux as is_for_linux
    from edgepack.fleets.forms import ExportFormat as ExportFormat
    from edgepack.fleets.packages import find_nfpm as find_nfpm
    from edgepack.jobs.queue import Job as Job
    from edgepack.jobs.queue import JobQueue as JobQueue
    from edgepack.jobs.queue import JobRun as JobRun
    from edgepack.jobs.queue import NewJob as NewJob
    from edgepack.jobs.waiting import wait_for_jobs as wait_for_jobs
    from edgepack.jobs.work import WorkSettings as WorkSettings
    from edgepack.jobs.work import work_on_jobs as work_on_jobs
    from edgepack.measure.bench.pipelines import bench_pipeline as bench_pipeline
    from edgepack.measure.bench.pipelines import require_valid_pipeline as require_valid_pipeline
    from edgepack.measure.bench.run import bench as bench
    from edgepack.measure.bench.sweeps import Shapes as Shapes
    from edgepack.measure.bench.sweeps import make_sweep_points as make_sweep_points
    from edgepack.measure.bench.variants import VariantsBench as VariantsBench
    from edgepack.measure.bench.variants import bench_variants as bench_variants
    from edgepack.measure.check import check_device as check_device
    from edgepack.measure.compare.comparing import CompareQuestion as CompareQuestion
    from edgepack.measure.compare.comparing import compare as compare
    from edgepack.measure.compare.formats import COMPARISON_HEADS as COMPARISON_HEADS
    from edgepack.measure.compare.formats import format_comparison_junit as format_comparison_junit
    from edgepack.measure.compare.formats import (
        format_comparison_markdown as format_comparison_markdown,
    )
    from edgepack.measure.compare.formats import format_comparison_rows as format_comparison_rows
    from edgepack.measure.compare.noise import NoiseFloor as NoiseFloor
    from edgepack.measure.compare.noise import measure_noise as measure_noise
    from edgepack.measure.evaluate.evaluate import evaluate as evaluate
    from edgepack.measure.evaluate.evaluate import require_usable as require_usable
    from edgepack.measure.evaluate.variants import VariantsEvaluation as VariantsEvaluation
    from edgepack.measure.evaluate.variants import evaluate_variants as evaluate_variants
    from edgepack.measure.evaluate.variants import require_all_usable as require_all_usable
    from edgepack.measure.optimize.keeping import keep_optimizing as keep_optimizing
    from edgepack.measure.optimize.optimizing import Optimized as Optimized
    from edgepack.measure.optimize.optimizing import OptimizeQuestion as OptimizeQuestion
    from edgepack.measure.optimize.optimizing import optimize as optimize
    from edgepack.measure.optimize.optimizing import require_answer as require_answer
    from edgepack.measure.optimize.resolutions import ResolutionResult as ResolutionResult
    from edgepack.measure.optimize.resolutions import choose_resolution as choose_resolution
    from edgepack.measure.optimize.resolutions import (
        optimize_resolutions as optimize_resolutions,
    )
    from edgepack.measure.optimize.resolutions import require_resolution as require_resolution
    from edgepack.measure.tune.keeping import keep_tuning as keep_tuning
    from edgepack.measure.tune.keeping import load_tuning as load_tuning
    from edgepack.measure.tune.searching import TuneQuestion as TuneQuestion
    from edgepack.measure.tune.space import format_settings as format_settings
    from edgepack.measure.tune.tuning import TunePlan as TunePlan
    from edgepack.measure.tune.tuning import plan_tuning as plan_tuning
    from edgepack.measure.tune.tuning import tune as tune
    from edgepack.measure.tune.writing import Override as Override
    from edgepack.measure.tune.writing import make_override as make_override
    from edgepack.measure.tune.writing import write_override as write_override
    from edgepack.metrics.choosing import METRIC_TEXTS as METRIC_TEXTS
    from edgepack.model.facts import ModelFacts as ModelFacts
    from edgepack.model.finding import Finding as Finding
    from edgepack.model.finding import group_findings as group_findings
    from edgepack.ondevice.service.edgepack_settings import ServiceSettings as ServiceSettings
    from edgepack.project.limits import Limits as Limits
    from edgepack.project.loading import PROJECT_FILE as PROJECT_FILE
    from edgepack.project.loading import LoadedProject as LoadedProject
    from edgepack.project.loading import read_project as read_project
    from edgepack.project.pipeline import is_pipeline as is_pipeline
    from edgepack.project.profile import Profile as Profile
    from edgepack.project.profile import find_target_files as find_target_files
    from edgepack.project.profile import load_profile as load_profile
    from edgepack.project.project import ConstantValue as ConstantValue
    from edgepack.records.batches import choose_best_batch as choose_best_batch
    from edgepack.records.comparison import ComparedMetric as ComparedMetric
    from edgepack.records.comparison import Comparison as Comparison
    from edgepack.records.deciding import Rule as Rule
    from edgepack.records.optimizing import IS_BASE as IS_BASE
    from edgepack.records.optimizing import OptimizeReport as OptimizeReport
    from edgepack.records.pipeline import PipelineReport as PipelineReport
    from edgepack.records.pipeline import StageSummary as StageSummary
    from edgepack.records.pipeline import summarize_stages as summarize_stages
    from edgepack.records.presets import Preset as Preset
    from edgepack.records.presets import find_preset as find_preset
    from edgepack.records.profiled import ProfiledRun as ProfiledRun
    from edgepack.records.run import ALL_VARIANTS as ALL_VARIANTS
    from edgepack.records.run import BestBatch as BestBatch
    from edgepack.records.run import EvaluationReport as EvaluationReport
    from edgepack.records.run import ImportedReport as ImportedReport
    from edgepack.records.run import Memory as Memory
    from edgepack.records.run import RunReport as RunReport
    from edgepack.records.run import Scenario as Scenario
    from edgepack.records.run import SweepPoint as SweepPoint
    from edgepack.records.run import VariantFacts as VariantFacts
    from edgepack.records.scenarios import make_scenario as make_scenario
    from edgepack.records.tuning import Candidate as Candidate
    from edgepack.records.tuning import Confirmation as Confirmation
    from edgepack.records.tuning import Latency as Latency
    from edgepack.records.tuning import Settings as Settings
    from edgepack.records.tuning import TuneReport as TuneReport
    from edgepack.records.verdict import require_valid as require_valid
    from edgepack.registry.enrolling import Enrolled as Enrolled
    from edgepack.registry.enrolling import PulledProject as PulledProject
    from edgepack.registry.enrolling import PullSettings as PullSettings
    from edgepack.registry.enrolling import enroll_device as enroll_device
    from edgepack.registry.enrolling import list_pulled as list_pulled
    from edgepack.registry.enrolling import unenroll_device as unenroll_device
    from edgepack.registry.fetching import Fetched as Fetched
    from edgepack.registry.fetching import FetchOptions as FetchOptions
    from edgepack.registry.fetching import fetch as fetch
    from edgepack.registry.fetching import find_folders as find_folders
    from edgepack.registry.listing import ListedTag as ListedTag
    from edgepack.registry.listing import list_tags as list_tags
    from edgepack.registry.publishing import Published as Published
    from edgepack.registry.publishing import PublishOptions as PublishOptions
    from edgepack.registry.publishing import promote as promote
    from edgepack.registry.publishing import publish as publish
    from edgepack.registry.reference import Reference as Reference
    from edgepack.registry.reference import is_reference as is_reference
    from edgepack.results.explaining.bottlenecks import Bottleneck as Bottleneck
    from edgepack.results.explaining.explain_run import explain_run as explain_run
    from edgepack.results.explaining.explaining import Explanation as Explanation
    from edgepack.results.explaining.explaining import TimePart as TimePart
    from edgepack.results.explaining.roofline import NodeCost as NodeCost
    from edgepack.results.explaining.roofline import Roof as Roof
    from edgepack.results.explaining.texts import format_explained as format_explained
    from edgepack.results.explaining.texts import list_doubts as list_doubts
    from edgepack.results.explaining.texts import list_node_rows as list_node_rows
    from edgepack.results.explaining.texts import list_part_rows as list_part_rows
    from edgepack.results.explaining.texts import (
        make_explanation_document as make_explanation_document,
    )
    from edgepack.results.limits import JudgedLimit as JudgedLimit
    from edgepack.results.limits import judge_limits as judge_limits
    from edgepack.results.limits import load_others as load_others
    from edgepack.results.limits import require_limits as require_limits
    from edgepack.results.limits import require_measured as require_measured
    from edgepack.results.page.changes_text import find_newest_changes as find_newest_changes
    from edgepack.results.page.changes_text import format_series as format_series
    from edgepack.results.page.changes_text import require_no_slowdown as require_no_slowdown
    from edgepack.results.page.html import write_html as write_html
    from edgepack.results.page.reporting import Page as Page
    from edgepack.results.page.reporting import report as report
    from edgepack.results.page.table import GroupName as GroupName
    from edgepack.results.page.table import format_groups as format_groups
    from edgepack.results.page.table import format_nearness as format_nearness
    from edgepack.results.page.table import format_others as format_others
    from edgepack.results.page.table import format_r2 as format_r2
    from edgepack.results.page.table import format_rows as format_rows
    from edgepack.results.page.table import format_run_line as format_run_line
    from edgepack.results.page.table import make_report_table as make_report_table
    from edgepack.results.page.tried import NOT_COMPARABLE as NOT_COMPARABLE
    from edgepack.results.page.tried import TriedStage as TriedStage
    from edgepack.results.page.tried import group_stages as group_stages
    from edgepack.results.page.variants import VARIANT_HEADS as VARIANT_HEADS
    from edgepack.results.page.variants import format_best_variant as format_best_variant
    from edgepack.results.page.variants import format_variants_junit as format_variants_junit
    from edgepack.results.page.variants import format_variants_markdown as format_variants_markdown
    from edgepack.results.page.variants import list_variant_rows as list_variant_rows
    from edgepack.results.store.changes import HistorySeries as HistorySeries
    from edgepack.results.store.changes import find_changes as find_changes
    from edgepack.results.store.documents import Report as Report
    from edgepack.results.store.documents import read_report as read_report
    from edgepack.results.store.exporting import export_runs as export_runs
    from edgepack.results.store.importing import import_log as import_log
    from edgepack.results.store.labels import explain_incomparable as explain_incomparable
    from edgepack.results.store.measured import MeasuredBefore as MeasuredBefore
    from edgepack.results.store.measured import find_measured as find_measured
    from edgepack.results.store.measured import list_out as list_out
    from edgepack.results.store.rows import RunRow as RunRow
    from edgepack.results.store.runs import import_runs as import_runs
    from edgepack.results.store.runs import list_runs as list_runs
    from edgepack.results.store.runs import prune_runs as prune_runs
    from edgepack.results.store.runs import show_run as show_run
    from edgepack.results.store.store import ResultsStore as ResultsStore
    from edgepack.results.store.store import RunFilter as RunFilter
    from edgepack.results.store.store import keep_report as keep_report
    from edgepack.serving.serving import serve as serve
    from edgepack.trying.trial import InputTrial as InputTrial
    from edgepack.trying.trial import Trial as Trial
    from edgepack.trying.trying import try_bundle as try_bundle
    from edgepack.trying.verdicts import Compared as Compared
    from edgepack.trying.verify import Verification as Verification
    from edgepack.trying.verify import verify as verify


@cache
def _read_homes() -> dict[str, str]:
    """Return the module that defines each name, from the imports above, which never run."""
    tree = ast.parse(Path(__file__).read_bytes())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {
        alias.name: node.module
        for node in imports
        if node.module is not None and node.module.startswith("edgepack.")
        for alias in node.names
    }


if not TYPE_CHECKING:  # a type checker would take any name for one of this module

    def __getattr__(name: str) -> object:
        homes = _read_homes()
        if name == "__all__":
            return sorted(homes)
        if name not in homes:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)


def __dir__() -> list[str]:
    return sorted(_read_homes())
