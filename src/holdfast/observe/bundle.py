"""The files of a support bundle: what somebody else needs to help, and no row of data (design/0049, section 7).

Each file is made of fields that are named here, and its texts pass through :mod:`holdfast.observe.scrubbing`.  What a
later version adds to a status, a report or the log is in no bundle until it is named.
"""

from __future__ import annotations

import json
import os
import platform
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, get_args

from holdfast import __version__
from holdfast.config import OTHER_VARIABLES, Settings
from holdfast.graph.graph import Graph
from holdfast.json_values import as_json
from holdfast.observe.inspection import DecisionSummary, Inspection, SinkReport
from holdfast.observe.logs import FILE_NAME
from holdfast.observe.reading import configuration
from holdfast.observe.scrubbing import COVER, Scrubber
from holdfast.store import durable

LOG_BYTES = 256 << 10
"""So much of the end of a log."""

_PACKAGES = (
    *("pyspark", "py4j", "pyarrow", "pandas", "numpy", "fsspec", "sqlglot", "pydantic-core", "protobuf", "psycopg"),
    *("PyMySQL", "redis", "confluent-kafka", "kafka-python", "fastavro", "urllib3", "s3fs", "obstore", "av"),
    *("prometheus-client", "opentelemetry-sdk", "openlineage-python"),
)
_PLAIN_SETTING = re.compile(r"-?\d+(\.\d+)?( ?[a-zA-Z]{1,3})?|true|false|yarn|local(\[[\d*, ]+\])?")
_ROOMS = frozenset(
    {"ledger", "generations", "spark", "state", "control", "steer", "rejects", "named", "starts", "graph"}
)
_PARTS_OF_NAME = re.compile(r"[\w.-]+")

_RUN = ("state", "generation", "epoch", "rows_total", "rows_per_s", "retries", "queue", "in_doubt", "audit_difference")
_RUN_TEXTS = ("started_at_us", "error", "waits_for", "doing", "last_epoch", "checkpoints", "time", "filters")
_SOURCE = ("name", "lag", "lag_s", "rows", "rejects", "reasons", "bound_us", "is_paused", "limit_rows_per_s")
_OPERATOR = ("name", "kind", "state_rows", "state_bytes", "waiting_rows", "waiting_keys", "late", "shed", "counts")
_SINK = ("name", "kind", "guarantee", "staging", "epoch", "rows", "last_choice", "pace")
_SINK_WAITS = ("waiting_epochs", "waiting_rows", "waiting_since_us")
_SHARD = ("shard", "state", "generation", "epoch", "rows_total", "rows_per_s", "lag", "restarts", "doing", "error")


@dataclass(frozen=True)
class Evidence:
    """What a bundle is made of.

    Parameters
    ----------
    directory : Path
        The checkpoint, or what this machine has of it.
    inspections : mapping of str to Inspection
        Shard -> what its checkpoint and its sinks say; empty for a pipeline that runs as one.
    settings : Settings
        Of this process.
    pipeline : Graph, optional
        None where it was not named, or cannot be loaded.
    explanation : str
        Of the pipeline, in words.
    plan : str
        What a start would do, in words.
    live : mapping
        What the run that is alive has told; empty where none is.
    problems : tuple of str
        What could not be had, and why.
    """

    directory: Path
    inspections: Mapping[str, Inspection]
    settings: Settings
    pipeline: Graph | None = None
    explanation: str = ""
    plan: str = ""
    live: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def bundle_files(evidence: Evidence) -> dict[str, bytes]:
    """Return the files of a bundle by their names, in their order."""
    scrub = Scrubber(_names(evidence))
    texts = {
        "versions.json": _pretty(_versions()),
        "settings.json": _pretty([*_settings(evidence.settings)]),
        "sizes.json": _pretty(_sizes(evidence.directory)),
        "problems.txt": "\n".join(map(scrub.text, evidence.problems)),
        "pipeline.json": _pretty(_pipeline(evidence.pipeline)) if evidence.pipeline is not None else "",
        "explain.txt": scrub.text(evidence.explanation),
        "plan.txt": scrub.text(evidence.plan),
    }
    for shard, inspection in evidence.inspections.items():
        texts[f"shard-{shard}/checkpoint.json" if shard else "checkpoint.json"] = _pretty(
            scrub.value(_checkpoint(inspection))
        )
    texts.update(_live(evidence.live, scrub))
    texts[FILE_NAME] = _as_text(scrub.log(_log_tail(evidence.directory / FILE_NAME)))
    return {name: text.encode() for name, text in texts.items() if text}


def write_bundle(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a bundle that only this user can read, where nothing is.

    Raises
    ------
    OSError
        If it cannot be written; FileExistsError if something is there.
    """
    made = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, durable.PRIVATE_FILE), "wb")
    with made, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)


# --- what is in it ----------------------------------------------------------------------------------------------------


def _names(evidence: Evidence) -> Collection[str]:
    """Return the names of the graph: of its nodes and columns, and of who is in the checkpoint."""
    found: set[str] = set()
    if (graph := evidence.pipeline) is not None:
        found |= {graph.name, *(node.name for node in graph.nodes), *(sink.name for sink in graph.sinks)}
        found |= {column for node in graph.nodes for column in node.columns or ()}
    for inspection in evidence.inspections.values():
        found |= {inspection.pipeline, *(sink.name for sink in inspection.sinks)}
        found |= {schema.operator for schema in inspection.schemas}
        found |= {sink for decision in inspection.decisions for sink in decision.rows}
        if inspection.state is not None:
            found |= {operator.name for operator in inspection.state.operators}
            found |= set(inspection.state.rejects)
            found |= {node.name for node in inspection.state.time.nodes} if inspection.state.time else set()
    return found


def _versions() -> dict[str, Any]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    machine = {"system": platform.system(), "release": platform.release(), "machine": platform.machine()}
    cores = {"cores": os.cpu_count(), "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20}
    return {"holdfast": __version__, "python": platform.python_version(), "packages": found, **machine, **cores}


def _settings(settings: Settings) -> Iterator[dict[str, str]]:
    """Yield each setting; its value where it is a number, a size, a duration, or one of a few words."""
    for shown in configuration(settings).settings:
        name = shown.variable.removeprefix("HOLDFAST_").lower()
        known = get_args(type(settings).model_fields[name].annotation) if shown.is_setting else ()
        is_plain = not shown.value or shown.value in known or _PLAIN_SETTING.fullmatch(shown.value)
        is_known = shown.is_setting or shown.variable in OTHER_VARIABLES
        if is_known:
            yield {"variable": shown.variable, "value": shown.value if is_plain else COVER, "whence": shown.whence}


def _sizes(directory: Path) -> dict[str, dict[str, int]]:
    """Return the files and bytes of each room of a checkpoint; those of unknown names together."""
    found: dict[str, dict[str, int]] = {}
    for path, _, files in os.walk(directory):
        parts = Path(path).relative_to(directory).parts
        room = (parts[0] if parts[0] in _ROOMS else COVER) if parts else "."
        counts = found.setdefault(room, {"files": 0, "bytes": 0})
        for name in files:
            try:
                counts["bytes"] += os.lstat(os.path.join(path, name)).st_size
                counts["files"] += 1
            except OSError:  # it went meanwhile
                continue
    return found


def _pipeline(graph: Graph) -> dict[str, Any]:
    nodes = [
        {
            "name": node.name,
            "kind": node.kind,
            "inputs": [each.name for each in node.inputs],
            "columns": list(node.columns or ()),
            "is_named": node.is_named,
        }
        for node in graph.nodes
    ]
    sinks = [
        {"name": sink.name, "kind": sink.spec.kind, "takes": None if sink.stream is None else sink.stream.node.name}
        for sink in graph.sinks
    ]
    return {"name": graph.name, "fingerprint": graph.fingerprint(), "nodes": nodes, "sinks": sinks}


def _checkpoint(inspection: Inspection) -> dict[str, Any]:
    owner, state = inspection.owner, inspection.state
    found: dict[str, Any] = {
        "pipeline": inspection.pipeline,
        "format": inspection.format,
        "last_done": inspection.last_done,
        "owner": {"generation": owner.generation, "is_alive": owner.is_alive},
        "decisions": [_decision(each) for each in inspection.decisions],
        "spark": [
            {"base": each.base, "planned": each.planned, "finished": each.finished, "ended": len(each.ended)}
            for each in inspection.spark
        ],
        "sinks": [_sink(each) for each in inspection.sinks],
        "behind": [{"sink": each.sink, "epoch": each.epoch, "published": each.published} for each in inspection.behind],
        "restarts": (inspection.supervisor or {}).get("restarts"),
        "why_restarted": str((inspection.supervisor or {}).get("why", "")),
    }
    if state is not None:
        found |= {"reported_at_us": state.at_us, "reported_epoch": state.epoch, "time": as_json(state.time)}
        found |= {"problem": state.problem, "rejects": as_json(state.rejects)}
        found["operators"] = [_operator(as_json(each)) for each in state.operators]
    return found


def _decision(decision: DecisionSummary) -> dict[str, Any]:
    """Return a decision without its positions: they name files, partitions, topics."""
    return {
        "epoch": decision.epoch,
        "generation": decision.generation,
        "standing": as_json(decision.standing),
        "rows": dict(decision.rows),
        "carried": list(decision.carried),
        "rewound_to": decision.rewound_to,
        "segments": {source: len(of) for source, of in decision.positions.items()},
    }


def _sink(sink: SinkReport) -> dict[str, Any]:
    answers = [
        {
            "epoch": each.epoch,
            "decision": as_json(each.decision),
            "outcome": as_json(each.outcome),
            "verdict": as_json(each.verdict),
        }
        for each in sink.answers
    ]
    return {
        "name": sink.name,
        "kind": sink.kind,
        "guarantee": sink.guarantee,
        "problem": sink.problem,
        "held": None if sink.held is None else sink.held.epoch,
        "answers": answers,
        "waiting": list(sink.waiting),
        "waiting_rows": sink.waiting_rows,
        "orphans": None if sink.orphans is None else len(sink.orphans),
        "expired": len(sink.expired),
        "transactions": [each.standing for each in sink.transactions],
    }


def _operator(of: Mapping[str, Any]) -> dict[str, Any]:
    """Return an operator without the keys that wait: how many are told, by their inputs."""
    waits: dict[str, int] = {}
    for wait in of.get("waits", ()):
        waits[wait["input"]] = waits.get(wait["input"], 0) + 1
    return {**_fields(of, _OPERATOR), "longest_waits_by_input": waits, "reasons": of.get("reasons", {})}


def _live(live: Mapping[str, Any], scrub: Scrubber) -> Iterator[tuple[str, str]]:
    status, stacks, jvm, stories = (live.get(name, "") for name in ("status", "stacks", "jvm", "stories"))
    if isinstance(status, Mapping):
        yield "status.json", _pretty(scrub.value(_status(status)))
    if isinstance(stories, Mapping):
        yield "stories.json", _pretty({scrub.name(name): [*_steps(of, scrub)] for name, of in stories.items()})
    if isinstance(stacks, Mapping):
        for name, text in stacks.items():
            yield f"stacks/{scrub.text(name).replace(' ', '-')}.txt", _as_text(scrub.stacks(text.splitlines()))
    if isinstance(jvm, Mapping):
        for name, text in jvm.items():
            yield f"stacks/{scrub.text(name)}.txt", _as_text(scrub.jvm_stacks(text.splitlines()))
    metrics = live.get("metrics", "")
    if metrics.startswith("#"):
        yield "metrics.txt", _as_text(scrub.metrics(metrics.splitlines()))
    unknown = {name: said for name, said in live.items() if isinstance(said, str) and said is not metrics}
    if metrics and not metrics.startswith("#"):
        unknown["metrics"] = metrics
    if unknown:
        yield "unanswered.json", _pretty(scrub.value(unknown))


def _status(status: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_fields(status, (*_RUN, *_RUN_TEXTS)),
        "sources": [_fields(each, _SOURCE) for each in status.get("sources", ())],
        "operators": [_operator(each) for each in status.get("operators", ())],
        "sinks": [_fields(each, (*_SINK, *_SINK_WAITS)) for each in status.get("sinks", ())],
        "shards": [_fields(each, _SHARD) for each in status.get("shards", ())],
    }


def _steps(steps: Sequence[Mapping[str, Any]], scrub: Scrubber) -> Iterator[dict[str, Any]]:
    for step in steps:
        yield {**step, "sink": scrub.name(step["sink"]), "detail": scrub.text(step["detail"])}


def _fields(of: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: of[name] for name in names if name in of}


def _log_tail(path: Path) -> list[str]:
    """Return the last lines of a log."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return lines[1:] if size > LOG_BYTES else lines


def _pretty(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def _as_text(lines: Iterator[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
