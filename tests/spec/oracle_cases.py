"""Recorded cases of synchronisation: those that are asked of ``sync``, and how several of them share one run.

In a shared run a case is a key.  Epoch ``n`` brings event ``n`` of each case that was recorded with the node running
after each event, and the first one brings the whole of those where all was fed first.  Promises come as bound rows of
the sources.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast.graph.nodes import Stream
from holdfast.operators.sync import policy as policies
from holdfast.operators.sync.spec import sync
from holdfast.state.step import CLOSED

CASES = json.loads((Path(__file__).parent / "oracle" / "cases.json").read_text())["cases"]

Case = dict[str, Any]
Sets = list[tuple[int, dict[str, Any]]]
"""Time, and input -> value: in their order."""


def is_asked(case: Case) -> bool:
    """Whether a case is of one node, with packets, without batching, throttling and special timestamps."""
    has_special_time = any(isinstance(event[2], str) for event in case["events"] if len(event) > 2)
    return not (
        case.get("kind")
        or case.get("process_timestamp_bounds")
        or case.get("batch_size")
        or case["id"].startswith("backpressure-")
        or has_special_time
    )


ASKED = [case for case in CASES if is_asked(case)]


def policy_of(case: Case) -> policies.Policy:
    """Return the policy of a case."""
    match case["policy"]:
        case "default":
            return policies.settled()
        case "sync_set":
            return policies.sync_sets([group for group in case["sync_sets"] if group])
        case "immediate":
            return policies.immediate()
        case "barrier":
            return policies.barrier()
        case "early_close":
            return policies.early_close()
        case "mux":
            return policies.mux(case["streams"][-1])
        case "timestamp_align":
            return policies.timestamp_align(case["base"])
        case "fixed_size":
            sizes = case["fixed_size"]
            return policies.fixed_size(
                sizes.get("trigger_queue_size", 2),
                sizes.get("target_queue_size", 1),
                sizes.get("fixed_min_size", False),
            )
    raise AssertionError(case["policy"])


def expected_sets(case: Case) -> Sets:
    """Return the sets of a case; calls without packets are no input sets."""
    return [
        (found["ts"], {of: value for of, (_, value) in found["packets"].items()})
        for found in case["expected"]["sets"]
        if found["packets"]
    ]


def late_at_last(case: Case) -> tuple[str, int] | None:
    """Return input and time of the row at which the reference ends its run with an error; None where it does not."""
    error = case["expected"]["error"]
    if error is None or error["kind"] != "late_packet":
        return None
    of, _, time, _ = case["events"][error["event"]]
    return of, time


# --- several cases in one run -----------------------------------------------------------------------------------------

SCHEMA = "k STRING, node INT, t BIGINT, v BIGINT, is_bound BOOLEAN"


@dataclass(frozen=True)
class SharedRun:
    """Cases that share one run; cases of one policy and the same inputs share a node.

    Parameters
    ----------
    names : collection of str
        Their ids.
    """

    names: Collection[str]

    @cached_property
    def cases(self) -> dict[str, Case]:
        """Name -> case."""
        return {case["id"]: case for case in ASKED if case["id"] in self.names}

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {text: number for number, text in enumerate(dict.fromkeys(map(_node_of, self.cases.values())))}

    def sources(self) -> list[Stream]:
        """Return one source for each ordinal of an input."""
        return [
            hf.read.rows(
                self._epochs(ordinal), schema=SCHEMA, timestamp="t", bounds="is_bound", name=f"source_{ordinal}"
            )
            for ordinal in range(max(len(case["streams"]) for case in self.cases.values()))
        ]

    def nodes(self, sources: Sequence[Stream]) -> Iterator[tuple[int, list[str], Stream]]:
        """Yield for each node its number, the names of its inputs, and its sets."""
        made: set[int] = set()
        for case in self.cases.values():
            number, names = self._numbers[_node_of(case)], case["streams"]
            if number in made:
                continue
            made.add(number)
            inputs = {
                name: source | hf.filter(f"node = {number}", name=f"for_{number}_{name}")
                for name, source in zip(names, sources, strict=False)
            }
            policy = policy_of(case)
            if isinstance(policy, policies.Mux):
                policy = replace(policy, column="v")
            yield number, names, sync(inputs, by="k", policy=policy, name=f"sync_{number}")

    def _epochs(self, ordinal: int) -> list[list[dict[str, Any]]]:
        """Return the rows of one source, which feeds the input of that number of each case."""
        each = []
        for case in self.cases.values():
            fed = _fed(case)
            rows = [[self._row(case, event)] if case["streams"].index(event[0]) == ordinal else [] for event in fed]
            each.append(rows if case["drain"] == "each" else [[row for one in rows for row in one]])
        return [[row for part in parts for row in part] for parts in zip_longest(*each, fillvalue=[])]

    def _row(self, case: Case, event: list[Any]) -> dict[str, Any]:
        _, what, *rest = event
        time, value = (CLOSED, 0) if what == "close" else (*rest, 0)[:2]
        node = self._numbers[_node_of(case)]
        return {"k": case["id"], "node": node, "t": time, "v": value, "is_bound": what != "packet"}


def _node_of(case: Case) -> str:
    """Return what is the same for cases that one operator can take: the policy and the inputs."""
    return json.dumps([case.get(what) for what in ("policy", "streams", "sync_sets", "fixed_size", "base")])


def _fed(case: Case) -> list[list[Any]]:
    """Return the events up to the one at which the reference ends its run with an error."""
    error = case["expected"]["error"]
    events: list[list[Any]] = case["events"]
    return events if error is None else events[: error["event"] + 1]
