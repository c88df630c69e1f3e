"""Health of a pipeline of which no run answers: what its checkpoint says, for who probes it."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.commit.ledger import Standing
from holdfast.display.lines import utc
from holdfast.health import Health
from holdfast.observe.inspection import Inspection

EPOCHS_SHOWN = 10


def health_of_checkpoint(inspection: Inspection) -> Health:
    """Return what is wrong with a pipeline whose run does not answer.

    Parameters
    ----------
    inspection : Inspection
        Of its checkpoint.

    Examples
    --------
    >>> from holdfast.commit.owner import Owner
    >>> health_of_checkpoint(Inspection("cp", "trips", 1, Owner(4, 0, "host", 7, False), 41, (), ())).reasons
    ('no run is alive: process 7 on host took over last, as generation 4, 1970-01-01T00:00:00Z.',)
    """
    return Health(tuple(_reasons(inspection)))


def _reasons(inspection: Inspection) -> Iterator[str]:
    owner = inspection.owner
    if not owner.generation:
        yield "nothing has run on this checkpoint."
        return
    who = f"process {owner.pid} on {owner.host} took over last, as generation {owner.generation}, {utc(owner.at_us)}"
    yield f"no run is alive: {who}." if owner.is_alive is False else f"no run answers on this machine: {who}."
    if (noted := inspection.supervisor) is not None:
        yield f"it was restarted {noted['restarts']} times, the last one {utc(noted['at_us'])}: the run {noted['why']}"
    if inspection.open_epochs:
        epochs = ", ".join(map(str, inspection.open_epochs[:EPOCHS_SHOWN]))
        yield f"decided, and not known to be published everywhere: epoch {epochs}; the next start publishes it."
    if any(decision.standing is Standing.DAMAGED for decision in inspection.decisions):
        yield "a decision in the ledger cannot be read: holdfast inspect."
