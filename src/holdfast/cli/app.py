"""The commands and their options; what they do is in the other modules of this package."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Annotated, Any

import typer

from holdfast import __version__
from holdfast.cli import checkpoints, dead_letters, dev, frame, steering, video, words
from holdfast.cli.check import beginning, check_, ending, plan_
from holdfast.cli.child import told_to_supervisor
from holdfast.cli.foreground import backfill, run_in_foreground
from holdfast.cli.frame import (
    AsJson,
    BeginAt,
    BeginState,
    Checkpoint,
    CompareOnStart,
    CompareSink,
    DigestsOnly,
    DropState,
    EndAt,
    FromCheckpoint,
    OnlyShard,
    RebuildState,
    Shards,
    ShownShard,
    SparkCheckpoint,
    Target,
)
from holdfast.cli.page import dashboard, page_beside
from holdfast.cli.reconcile import reconcile
from holdfast.cli.reset import reset, rewind_
from holdfast.cli.resolving import resolve_
from holdfast.cli.spare import Waiting, is_spare
from holdfast.cli.standing_by import Invocation, promote
from holdfast.cli.supervision import supervise
from holdfast.cli.target import load_target
from holdfast.cli.trace import support_bundle, trace_
from holdfast.config import Settings
from holdfast.graph.event_time import check_commit_every
from holdfast.graph.graph import Graph
from holdfast.graph.trigger import Trigger, available_now
from holdfast.json_values import as_json as inspected_json
from holdfast.observe.audit_report import audit_lines, audit_report, summed_audit
from holdfast.observe.foreseen import foreseen
from holdfast.observe.reading import configuration
from holdfast.observe.schemas import OperatorSchema, operator_schemas, schema_lines
from holdfast.observe.shards import of_shard
from holdfast.pipeline import Pipeline
from holdfast.store.paths import checkpoint_directory, viewed_directory
from holdfast.types.units import duration_us

app = typer.Typer(
    name="holdfast",
    help="Exactly-once pipelines on Spark Structured Streaming.\n\n"
    "TARGET is path/to/file.py:pipeline or package.module:pipeline; without a name, the only pipeline there.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage or pipeline, 3 fenced, 4 in doubt or diverged.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(checkpoints.app, name="checkpoint")
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(dev.app, name="dev")
app.add_typer(video.app, name="video")
app.command("doctor")(dev.doctor)
app.command("demo")(dev.demo)
app.command("new")(dev.new)
app.command("dashboard")(dashboard)
app.command("reconcile")(reconcile)
app.command("reset")(reset)
app.command("resolve")(resolve_)
app.command("rewind")(rewind_)
app.command("trace")(trace_)
app.command("support-bundle")(support_bundle)
app.command("backfill")(backfill)
app.command("check")(check_)
app.command("plan")(plan_)
app.command("promote")(promote)
for _name, _command in steering.COMMANDS.items():
    app.command(_name)(_command)


def _say_version(wanted: bool) -> None:
    if wanted:
        frame.print_lines([f"holdfast {__version__}"])
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_say_version)
    ] = False,
) -> None:
    # Only the options before a command; a docstring here would replace the help of the whole.
    del version


@app.command()
def run(
    target: Target,
    checkpoint: Checkpoint,
    interval: Annotated[
        str | None, typer.Option("--every", metavar="DURATION", help="Begin an epoch at most this often: 100ms.")
    ] = None,
    drain: Annotated[bool, typer.Option("--available-now", help="Process what is available now, then stop.")] = False,
    master: Annotated[str | None, typer.Option(metavar="URL", help="Spark master. Default: HOLDFAST_MASTER.")] = None,
    commit_every: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Publish once event time has advanced by this much: 1s, or ticks.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Start a changed graph even where state does not fit: see holdfast plan.")
    ] = False,
    drop_state: DropState = None,
    rebuild_state: RebuildState = False,
    compare_on_start: CompareOnStart = False,
    compare_sink: CompareSink = None,
    digests_only: DigestsOnly = False,
    from_checkpoint: FromCheckpoint = None,
    at: BeginAt = None,
    until: EndAt = None,
    state: BeginState = None,
    on_poison: Annotated[
        str | None, typer.Option(metavar="stop|isolate", help="What happens to rows that crash the run repeatedly.")
    ] = None,
    on_audit: Annotated[
        str | None, typer.Option(metavar="stop|warn|off", help="What happens where rows do not add up.")
    ] = None,
    spark_checkpoint: SparkCheckpoint = None,
    supervised: Annotated[
        bool, typer.Option("--supervise", help="Run in a child process, and restart it when it fails.")
    ] = False,
    max_restarts: Annotated[
        int | None, typer.Option(metavar="N", help="With --supervise: how many consecutive restarts at most.", min=0)
    ] = None,
    spare: Annotated[
        bool, typer.Option("--spare", help="With --supervise: keep a second process ready that takes over.")
    ] = False,
    lease: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Keep a lease, so that replicas see that this run is alive.")
    ] = None,
    replica: Annotated[
        bool, typer.Option("--replica", help="Wait with everything ready, and take over when the lease is free.")
    ] = False,
    shards: Shards = None,
    only_shard: OnlyShard = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve metrics for Prometheus here: 127.0.0.1:9464.")
    ] = None,
    page: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve a web page of the run here: 127.0.0.1:8080.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline in the foreground: Ctrl-C or SIGTERM stops it after the current epoch."""
    with frame.settings(as_json) as settings:
        trigger = _trigger(interval, drain)
        # Here, for errors to name what was typed: the start knows it by other names.
        grouping: str | int | None = None
        if commit_every is not None:
            grouping = int(commit_every) if commit_every.isdigit() else commit_every
            check_commit_every(grouping, argument="--commit-every")
        begins = {**beginning(from_checkpoint, at, state), **ending(until)}
        directory = checkpoint_directory(checkpoint, scratch_base=spark_checkpoint)
        if lease is not None:
            settings = Settings(**{**settings.model_dump(), "lease": lease})
        if not supervised and (spare or max_restarts is not None):
            raise typer.BadParameter(f"{'--spare' if spare else '--max-restarts'} belongs to --supervise.")
        if supervised:
            words_of_child = {
                "--every": interval,
                "--master": master,
                "--commit-every": commit_every,
                "--from-checkpoint": from_checkpoint,
                "--at": at,
                "--until": until,
                "--on-poison": on_poison,
                "--on-audit": on_audit,
                "--lease": lease,
                "--shards": None if shards is None else str(shards),
                "--only-shard": None if only_shard is None else str(only_shard),
                "--metrics": metrics,
            }
            flags = {"--available-now": drain, "--force": force, "--json": as_json, "--replica": replica}
            flags |= {"--rebuild-state": rebuild_state, "--compare-on-start": compare_on_start}
            flags["--digests-only"] = digests_only
            arguments = [part for name, value in words_of_child.items() if value is not None for part in (name, value)]
            arguments += [name for name, is_given in flags.items() if is_given]
            arguments += [part for name in drop_state or () for part in ("--drop-state", name)]
            arguments += [part for name in compare_sink or () for part in ("--compare-sink", name)]
            arguments += [part for each in state or () for part in ("--state", each)]
            shown = page_beside(page or "", target, checkpoint)
            with frame.log_file(directory, settings, as_json, another_rotates=True), shown:
                code = supervise(
                    target,
                    checkpoint=checkpoint if spark_checkpoint is None else str(directory),
                    max_restarts=max_restarts,
                    arguments=arguments,
                    settings=settings,
                    spare=spare,
                )
            raise typer.Exit(code)
        given = {
            "master": master,
            "commit_every": grouping,
            "force": force or None,
            "drop_state": drop_state or None,
            "rebuild_state": rebuild_state or None,
            "compare_on_start": compare_sink or compare_on_start or None,
            "digests_only": digests_only or None,
            "on_poison": on_poison,
            "on_audit": on_audit,
            "shards": shards,
            "only_shard": only_shard,
            "metrics": metrics,
            "settings": settings,
            **begins,
        }
        options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        waiting, invocation = Waiting() if is_spare() else None, Invocation()
        with waiting or nullcontext():
            pipeline = load_target(target)
            if waiting is not None:
                waiting.until_needed(pipeline, options)

        standby = None
        if replica or settings.lease_us:
            from holdfast.cli.standing_by import Standby

            standby = Standby(
                pipeline, directory, settings, invocation, is_replica=replica, as_json=as_json, only_shard=only_shard
            )
            standby.take(options)
        start = partial(pipeline.start, checkpoint=str(directory), trigger=trigger, **options)
        with frame.log_file(directory, settings, as_json):
            frame.note_start(f"run {target}")
            frame.note_settings(settings)
            with told_to_supervisor(), page_beside(page or "", target, checkpoint), standby or nullcontext():
                begin = start if standby is None else partial(standby.kept, start)
                run_in_foreground(pipeline.name, begin, settings, as_json=as_json)


@app.command()
def inspect(
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="DIR", help="The pipeline's own directory.")
    ] = None,
    target: Annotated[
        str | None, typer.Argument(metavar="[TARGET]", help="Ask the sinks of this pipeline too.")
    ] = None,
    config: Annotated[
        bool, typer.Option("--config", help="Show the settings instead, and where each value comes from.")
    ] = False,
    audit: Annotated[
        bool, typer.Option("--audit", help="Show the rows of each operator instead, as the audit counted them.")
    ] = False,
    shard: ShownShard = None,
    as_json: AsJson = False,
) -> None:
    """Show what a checkpoint and its sinks hold, or with TARGET alone what its operators would keep.

    Changes nothing, and may run while the pipeline does.
    """
    with frame.settings(as_json) as settings:
        if config:
            shown = configuration(settings)
            frame.answer(shown.to_json(), words.configuration_lines(shown), as_json)
            return
        if checkpoint is None and target is not None:
            kept = _kept(load_target(target), settings)
            frame.answer({"schemas": inspected_json(kept)}, schema_lines(kept), as_json)
            return
        if checkpoint is None:
            raise typer.BadParameter("--checkpoint DIR is missing; without it, --config and TARGET can be answered.")
        if audit:
            report = summed_audit([audit_report(store) for store in frame.shard_stores(checkpoint)])
            frame.answer({"audit": report.to_json()}, audit_lines(report), as_json)
            return
        pipeline: Graph | None = None if target is None else load_target(target)
        if shard is not None:
            pipeline, checkpoint = of_shard(pipeline, checkpoint, shard)
        directory = viewed_directory(checkpoint)
        has_run = frame.has_run(directory)
        inspection = frame.inspected(checkpoint, pipeline) if has_run or pipeline is None else None
        if pipeline is not None and (inspection is None or not (inspection.spark or inspection.owner.is_alive)):
            found = foreseen(pipeline, checkpoint, directory, settings, inspection, only_if_lost=True)
            if found.is_lost:
                lines = [*words.inspection_lines(found.inspection), *words.lost_lines(checkpoint, pipeline.name, found)]
                answer = {**inspected_json(found.inspection), "recovery": words.foreseen_json(found)}
                frame.answer(answer, lines, as_json)
                return
        inspection = inspection or frame.inspected(checkpoint, pipeline)
        frame.answer(inspected_json(inspection), words.inspection_lines(inspection), as_json)


@app.command()
def flush(
    target: Target,
    sinks: Annotated[
        list[str] | None, typer.Argument(metavar="[SINK]...", help="Names of sinks. Default: all that support it.")
    ] = None,
    partition: Annotated[
        list[str] | None, typer.Option("--partition", metavar="DIR", help="Only this partition: origin=JFK.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="DIR", help="Checkpoint of the run, to ask sinks with commit_every.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ask the run that is alive to seal segments, and sinks with commit_every to commit.  Returns at once."""
    with frame.settings(as_json):
        from holdfast.controller.flushing import flush_sinks, runs_to_flush

        pipeline = load_target(target)
        stores = None if checkpoint is None else frame.shard_stores(checkpoint)
        for name, store in runs_to_flush(pipeline, stores):
            asked = flush_sinks(pipeline.with_sources(name, {}), sinks or (), partition, store)
        frame.answer({"flushed": asked}, [f"sink {name} was asked to flush" for name in asked], as_json)


@app.command()
def explain(
    target: Target,
    diagram: Annotated[bool, typer.Option("--diagram", help="Draw it instead, as a Mermaid flowchart.")] = False,
    spark: Annotated[bool, typer.Option("--spark", help="Also check what only Spark can tell. Needs Java.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check a pipeline, and describe it in words, or draw it.  Runs nothing."""
    with frame.settings(as_json) as settings:
        pipeline = load_target(target)
        explanation = pipeline.explain(session=_session(settings) if spark else None)
        if as_json:
            answer = {"spec": pipeline.spec(), "fingerprint": pipeline.fingerprint(), "explanation": explanation}
            frame.print_json(answer | ({"diagram": pipeline.diagram()} if diagram else {}))
        else:
            frame.print_lines([pipeline.diagram() if diagram else explanation])


def _session(settings: Settings) -> Any:
    from holdfast.spark.launch.jvm_options import RowsInJvm
    from holdfast.spark.launch.session import session_of

    return session_of(settings, rows=RowsInJvm.NONE)


def _kept(pipeline: Pipeline, settings: Settings) -> tuple[OperatorSchema, ...]:
    from holdfast.starts.plan import state_schemas

    return operator_schemas(state_schemas(pipeline, settings))


def _trigger(interval: str | None, drain: bool) -> Trigger | None:
    if interval is not None and drain:
        raise typer.BadParameter("--every and --available-now exclude each other.")
    if drain:
        return available_now()
    return None if interval is None else Trigger(duration_us(interval, argument="--every"))
