"""A status in one line of plain text, and the pieces that lines and tables share.

What a start is doing, said while it does it: a start blocks, so there is no run yet that could be asked.

Times in readable form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta

from holdfast.masking import masked
from holdfast.status import SourceStatus, Status
from holdfast.time_use import STAGES, EpochStatus, NodeTime, TimeUse


def as_line(status: Status) -> str:
    """Return a status as one plain line.

    Examples
    --------
    >>> as_line(Status("trips", state="running", epoch=41, rows_total=12345, rows_per_s=250.4))
    'trips running: epoch 41, 12,345 rows (250/s)'
    """
    if status.shards:
        parts = [status.doing] if status.doing else []
        parts += [f"{status.rows_total:,} rows ({status.rows_per_s:,.0f}/s)"]
        parts += [f"shard {each.shard} {each.state}" for each in status.shards if each.state in ("waiting", "failed")]
    elif status.epoch == 0:
        parts = [status.doing or "waiting for the first epoch"]
    else:
        parts = [status.doing] if status.doing else []
        parts += [f"epoch {status.epoch}", f"{status.rows_total:,} rows ({status.rows_per_s:,.0f}/s)"]
    if lags := [f"{source.name}={_lag(source)}" for source in status.sources if source.lag is not None]:
        parts.append(f"lag {' '.join(lags)}")
    if rejects := sum(source.rejects for source in status.sources):
        parts.append(f"rejects {rejects:,}")
    if dropped := [each for each in status.filters if each.filtered]:
        parts.append("filtered out " + " ".join(f"{each.name}={each.filtered:,}" for each in dropped))
    for what in ("waiting", "late", "shed"):
        if some := _by_operator(status, "waiting_rows" if what == "waiting" else what):
            parts.append(f"{what} {some}")
    if (longest := _longest_wait(status)) is not None:
        parts.append(longest)
    if status.sinks and not status.shards:
        parts.append("sinks " + " ".join(f"{sink.name}@{sink.epoch}" for sink in status.sinks))
    if status.last_epoch is not None:
        parts.append(stages_of(status.last_epoch))
    if status.time is not None and status.time.limited_by:
        parts.append(limit_of(status.time))
    if status.queue:
        parts.append(f"{status.queue} waiting for the commit thread")
    if status.retries:
        parts.append(f"retries {status.retries}")
    if status.waits_for:
        parts.append(f"tried again soon: {masked(status.waits_for)}")
    return f"{status.pipeline} {status.state}: {', '.join(parts)}"


def _lag(source: SourceStatus) -> str:
    """Return how far a source is behind; the seconds where they are some."""
    return f"{source.lag:,}/{source.lag_s:,.0f}s" if source.lag and (source.lag_s or 0) >= 1 else f"{source.lag:,}"


def as_last_line(status: Status, now_us: int) -> str:
    """Return what a run did, as one plain line for its end.

    Examples
    --------
    >>> as_last_line(Status("trips", state="stopped", epoch=41, rows_total=12345, started_at_us=0), 2_500_000)
    'trips stopped at epoch 41: 12,345 rows in 2.5 s (4,938/s)'
    """
    seconds = max((now_us - status.started_at_us) / 1e6, 1e-6)
    place = f"at epoch {status.epoch}" if status.epoch else "before the first epoch"
    if status.shards:
        place = f"in {len(status.shards)} shards"
    line = f"{status.pipeline} {status.state} {place}: {status.rows_total:,} rows in {seconds:.1f} s"
    line += f" ({status.rows_total / seconds:,.0f}/s)"
    for count, word in (
        (_count(sum(s.rejects for s in status.sources)), "rejects"),
        (_by_operator(status, "late"), "late"),
        (_by_operator(status, "shed"), "shed"),
        (_by_operator(status, "waiting_rows"), "still waiting for later rows, and not in the sinks:"),
        (_count(status.retries), "retries"),
    ):
        if count:
            line += f", {word} {count}"
    return line


def _count(count: int) -> str:
    return f"{count:,}" if count else ""


def stages_of(epoch: EpochStatus) -> str:
    """Return an epoch's milliseconds, in all and by stage.

    Examples
    --------
    >>> stages_of(EpochStatus(3, duration_ms={"publish": 4.0, "plan": 1.4}))
    '5 ms (plan 1, publish 4)'
    """
    names = [name for name in STAGES if name in epoch.duration_ms]
    names += [name for name in epoch.duration_ms if name not in STAGES]
    each = ", ".join(f"{name} {epoch.duration_ms[name]:.0f}" for name in names)
    return f"{epoch.total_ms:.0f} ms ({each})" if each else "0 ms"


def limit_of(use: TimeUse) -> str:
    """Return what limits a run, without secrets.

    Examples
    --------
    >>> limit_of(TimeUse(limited_by="publish to hourly_table, 61 % of the epoch"))
    'limited by: publish to hourly_table, 61 % of the epoch'
    """
    return f"limited by: {masked(use.limited_by)}"


def busiest_of(use: TimeUse) -> str:
    """Return the three busiest nodes, with their parts of an epoch; empty where none is known.

    Examples
    --------
    >>> busiest_of(TimeUse(nodes=(NodeTime("sums", 84.0, share=0.2), NodeTime("hourly", 10.0, 240.0, share=0.614))))
    'busiest: hourly 61 % (evaluate 10 ms, publish 240 ms), sums 20 % (evaluate 84 ms)'
    """
    busiest = ", ".join(f"{node.name} {100 * (node.share or 0):.0f} % ({_spent(node)})" for node in use.busiest())
    return f"busiest: {busiest}" if busiest else ""


def _spent(node: NodeTime) -> str:
    times = {"evaluate": node.evaluate_ms or 0.0, "publish": node.publish_ms}
    return ", ".join(f"{what} {ms:.0f} ms" for what, ms in times.items() if ms >= 0.5) or "under 1 ms"


def rows_of(epoch: EpochStatus) -> str:
    """Return how many rows an epoch published, and in which way."""
    return f"{epoch.rows:,} rows {'carried' if epoch.carried else 'staged'}"


def positions_text(positions: Mapping[str, int | str]) -> str:
    """Return positions in one line: ``log=7``; many segments are counted instead, and long texts cut.

    Examples
    --------
    >>> positions_text({"log": 7}), positions_text({}), positions_text({str(n): n for n in range(9)})
    ('log=7', '-', '9 segments, 36 in all')
    """
    if len(positions) > 4 and all(isinstance(position, int) for position in positions.values()):
        return f"{len(positions)} segments, {sum(int(p) for p in positions.values()):,} in all"
    text = " ".join(f"{segment}={position}" if segment else str(position) for segment, position in positions.items())
    return (text if len(text) <= 40 else text[:39] + "…") or "-"


def _by_operator(status: Status, count: str) -> str:
    """Return a count of each operator that has any: ``seen=3 sums=1``."""
    return " ".join(f"{o.name}={getattr(o, count):,}" for o in status.operators if getattr(o, count))


def _longest_wait(status: Status) -> str | None:
    waits = [(wait.since_us, operator.name, wait) for operator in status.operators for wait in operator.waits[:1]]
    if not waits:
        return None
    _, name, wait = min(waits, key=lambda one: one[:2])
    who = " ".join(f"{column}={value}" for column, value in wait.key.items())
    return f"{name}{f' ({who})' if who else ''} waits on {wait.input} since {utc(wait.since_us)}"


_listener: ContextVar[Callable[[str], object] | None] = ContextVar("holdfast_phase", default=None)


@contextmanager
def heard_by(listener: Callable[[str], object]) -> Iterator[None]:
    """Call a function with each phase that this thread reaches inside of the block.

    Examples
    --------
    >>> with heard_by(print):
    ...     say("starting Spark")
    starting Spark
    """
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)


def say(phase: str) -> None:
    """Say what is done from now on; nobody may be listening."""
    listener = _listener.get()
    if listener is not None:
        listener(phase)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def utc(at_us: int, *, is_exact: bool = False) -> str:
    """Return microseconds of Unix time as people read them, in UTC; the number itself where it is no such time.

    Parameters
    ----------
    at_us : int
        The time.
    is_exact : bool
        Whether what is less than a second is shown, where there is any.

    Examples
    --------
    >>> utc(1_700_000_000_000_000), utc(1_700_000_000_000_001), utc(1_700_000_000_000_001, is_exact=True)
    ('2023-11-14T22:13:20Z', '2023-11-14T22:13:20Z', '2023-11-14T22:13:20.000001Z')
    """
    try:
        at = _EPOCH + timedelta(microseconds=at_us)
        shown = at.isoformat() if is_exact else at.isoformat(timespec="seconds")
        return shown.replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return str(at_us)
