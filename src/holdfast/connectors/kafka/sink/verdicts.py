"""What a sink says of an epoch, or of its ledger, where a cluster has ended or forgotten what was not to end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from holdfast.connectors.kafka.sink.ledger import KafkaNames, Unfinished
from holdfast.connectors.kafka.sink.refusals import ProducerGone
from holdfast.connectors.kit.believed import rows_gone
from holdfast.errors import Diverged, InDoubt, Unavailable

_NAMES = "(The names are pipeline/generation/epoch/task/attempt.)"


def tasks_of(names: KafkaNames, transactions: Iterable[str]) -> Iterator[str]:
    """Yield the names of the tasks whose transactions these are; a driver's is none's."""
    for name in transactions:
        task = names.task_of(name)
        if task is not None:
            yield task.name


def expired(names: KafkaNames, tasks: Sequence[str]) -> Diverged:
    """Return what is said of tasks whose rows were to be published, and are no longer there."""
    why = "their transactions are no longer open: they lasted longer than transaction_timeout=, or were swept."
    return rows_gone(_node(names), ", ".join(tasks), why, pipeline=names.pipeline, participant=names.sink)


def published_in_part(names: KafkaNames, left: Unfinished, aborted: Sequence[str], epoch: int) -> Diverged:
    """Return what is said of an epoch that is visible but for some transactions."""
    visible = sorted(tasks_of(names, (name for name in left.transactions if name not in aborted)))
    return Diverged(
        f"{_node(names)}: rows of epoch {epoch} were aborted by the brokers, and others of it are visible.",
        why=f"the transactions of {', '.join(sorted(tasks_of(names, aborted)))} had ended before the driver could "
        f"commit them as it had decided: it was away for longer than transaction_timeout=, or somebody aborted them; "
        f"visible are {', '.join(visible) or 'those of no task'}.{_carried(left)} {_NAMES}",
        do="load the rows of those tasks again from the source, then start over with another name=; and raise "
        'transaction_timeout=, or write stage="driver".',
        pipeline=names.pipeline,
        participant=names.sink,
        epoch=epoch,
    )


def forgotten(names: KafkaNames, left: Unfinished, unknown: Sequence[str], epoch: int) -> Diverged:
    """Return what is said of an epoch of which nobody knows any more whether it is visible."""
    return Diverged(
        f"{_node(names)}: nobody knows whether rows of epoch {epoch} are visible.",
        why=f"it was decided, its run ended before it had noted that all is done, and since then the cluster has "
        f"forgotten the transactions of {', '.join(sorted(tasks_of(names, unknown)))} "
        f"(transactional.id.expiration.ms, a week as installed).{_carried(left)} {_NAMES}",
        do="look with a read_committed consumer which rows of that epoch are in the topic, load those that are not "
        "again from the source, then start over with another name=.",
        pipeline=names.pipeline,
        participant=names.sink,
        epoch=epoch,
    )


def not_yet_visible(names: KafkaNames, epoch: int, why: str) -> InDoubt:
    """Return what is said of an epoch that is decided and could not be completed."""
    return InDoubt(
        f"{_node(names)}: epoch {epoch} is decided, and not all of it is visible yet.",
        why=why,
        do="nothing by hand: publishing or opening the sink again completes it.",
        pipeline=names.pipeline,
        participant=names.sink,
        epoch=epoch,
    )


def without_barrier(names: KafkaNames, doubt: InDoubt) -> Unavailable:
    """Return what is said where nobody knows whether there is a barrier to read the ledger up to."""
    return Unavailable(
        f"{_node(names)}: its ledger was not read; nothing was changed.",
        why=f"before it is read, a record is written that marks its end, and the cluster did not say whether it has "
        f"that: {doubt.why}",
        do="it is retried; if the problem persists, check the brokers and the way to them.",
        pipeline=names.pipeline,
        participant=names.sink,
    )


def went_back(names: KafkaNames, how: str) -> Unavailable:
    """Return what is said of a reading of the ledger that is older than what is known."""
    return Unavailable(
        f"{_node(names)}: the Kafka cluster has told an older ledger than before.",
        why=f"{how}: records of the topic {names.progress!r} are gone, or the broker that was asked lacks some.",
        do="it is retried.  If it stays so, look whether the brokers have lost what they had acknowledged "
        "(min.insync.replicas, unclean.leader.election.enable).",
        pipeline=names.pipeline,
        participant=names.sink,
    )


def replaced(names: KafkaNames, gone: ProducerGone) -> Unavailable:
    """Return what is said where another producer has taken the name of the driver's."""
    return Unavailable(
        f"{_node(names)}: the producer of this run was replaced while it wrote; nothing was changed.",
        why=f"another run is taking the pipeline over; the brokers said: {gone}.",
        do="it is retried: the ledger is read again.",
        pipeline=names.pipeline,
        participant=names.sink,
    )


def _carried(left: Unfinished) -> str:
    return " Rows that the driver wrote are visible." if left.before is None else ""


def _node(names: KafkaNames) -> str:
    return f"sink {names.sink!r}"
