"""Keeping a lease: a thread renews it at a third of its duration, and finds out when it is lost.

Which sink of a pipeline keeps its lease.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from holdfast.capabilities import offers
from holdfast.errors import Fenced, HoldfastError, InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.ports import LeasedSpec, LeasePlace, SeenLease
from holdfast.replica.tenure import Tenure

log = logging.getLogger("holdfast.replica")

BEATS = 3
"""Beats in the time of a lease: one that comes late, or whose reply is lost, ends no tenure."""
_PATIENCE_S = 5.0
"""How long the end waits for a beat that the place does not answer."""


class Keeper:
    """Renews a tenure until it ends.  The place is its thread's alone from :meth:`start` to :meth:`end`.

    Parameters
    ----------
    place : LeasePlace
        Where the lease is kept: a connection of its own, which waits behind no publish.
    tenure : Tenure
        What is kept.
    """

    def __init__(self, place: LeasePlace, tenure: Tenure) -> None:
        self._place = place
        self._tenure = tenure
        self._generation = 0
        self._has_ended = threading.Event()
        self._is_lost = threading.Event()
        self._is_due = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="holdfast-lease", daemon=True)

    def start(self) -> None:
        """Begin to renew it."""
        self._thread.start()

    def note_generation(self, generation: int) -> None:
        """Say the generation of the holder's run, with a beat at once."""
        self._generation = generation
        self._is_due.set()

    @property
    def is_lost(self) -> bool:
        """Whether another process has taken the lease.  A beat late: what protects the sinks is their fence."""
        return self._is_lost.is_set()

    def check(self) -> None:
        """Raise Fenced if the lease is lost."""
        if self.is_lost:
            lease = self._tenure.lease
            raise Fenced(
                f"another process has taken the lease of term {lease.term}.",
                why="no beat of this one came in time, or somebody asked for a promotion.",
                do="nothing is lost: the other one continues where the sinks are.",
                generation=self._generation or None,
            )

    def end(self, *, gives_back: bool) -> None:
        """Stop renewing it, and close the place; given back, the lease is free at once."""
        self._has_ended.set()
        self._is_due.set()
        self._thread.join(_PATIENCE_S)
        if self._thread.is_alive():
            return  # the place does not answer: the lease expires
        try:
            if gives_back and not self.is_lost:
                self._tenure.give_back()
        except HoldfastError as error:
            log.warning("the lease is not given back, and expires: %s", error.what)
        self._place.close()

    def _keep(self) -> None:
        interval_s = self._tenure.lease.ttl_us / 1e6 / BEATS
        is_silent = False
        while True:
            self._is_due.wait(interval_s)
            self._is_due.clear()
            if self._has_ended.is_set():
                return
            try:
                if not self._tenure.renew(self._generation):
                    self._is_lost.set()
                    log.warning("the lease of term %d is lost", self._tenure.lease.term)
                    return
                is_silent = False
            except HoldfastError as error:  # whoever watches may take it meanwhile
                log.log(logging.DEBUG if is_silent else logging.WARNING, "the lease is not renewed: %s", error.what)
                is_silent = True


def as_json(seen: SeenLease) -> dict[str, Any]:
    """Return a lease as a JSON value; who holds the token is its holder's business."""
    said = {name: value for name, value in vars(seen.lease).items() if name != "token"}
    return {"beat": seen.beat, "left_us": seen.left_us, "is_held": bool(seen.lease.token), **said}


def held_by(seen: SeenLease) -> str:
    """Return who holds a lease, for people.

    Examples
    --------
    >>> from holdfast.ports import Lease
    >>> held_by(SeenLease(9, Lease(2, "t", "main", "db1", 7, 1_000_000, generation=5)))
    'main (process 7 on db1) holds term 2 with generation 5'
    """
    lease = seen.lease
    if not lease.token:
        return f"term {lease.term} was given back"
    generation = f" with generation {lease.generation}" if lease.generation else ""
    return f"{lease.name} (process {lease.pid} on {lease.host}) holds term {lease.term}{generation}"


def lease_of(pipeline: Graph, name: str | None = None) -> LeasePlace:
    """Return where the lease of a pipeline is kept: with the first of its sinks that can.

    Parameters
    ----------
    pipeline : Graph
        Whose sinks keep it.
    name : str, optional
        The lease; default is that of the whole pipeline.

    Raises
    ------
    InvalidPipeline
        If none can.
    """
    for node in pipeline.sinks:
        if offers(node.spec, LeasedSpec):
            return node.spec.lease(node.name, name or pipeline.name)
    raise InvalidPipeline(
        f"no sink of pipeline {pipeline.name!r} can keep a lease.",
        why="main and replica find each other in the system of a sink: write.postgres, write.mysql, write.sqlite, or "
        "write.files on a disk.",
        do="add such a sink; or run without --lease and --replica.",
        pipeline=pipeline.name,
    )
