"""What may leave a machine of a text: the words of Holdfast, names of the graph, and counts.

An allow list.  A word is kept where Holdfast's own messages and code have it, or where it is a name of the graph; a
number where a word beside it says what it counts; a file where it belongs to an installed package.  Everything else, of
which nobody can say whether it is a value of a row, becomes :data:`COVER`.
"""

from __future__ import annotations

import json
import re
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import holdfast
from holdfast.masking import masked

COVER = "…"

_NUMBERED = frozenset(
    (
        *("worker", "epoch", "generation", "process", "line", "shard", "bucket", "batch", "attempt", "block", "code"),
        *("signal", "version"),
    )
)
"""Words that precede a number."""
_COUNTED = frozenset(
    (
        *("epochs", "generations", "shards", "buckets", "attempts", "row", "rows", "file", "files", "blocks", "byte"),
        *("bytes", "B", "kB", "MB", "GB", "KiB", "MiB", "GiB", "s", "ms", "h", "min", "seconds", "minutes", "segments"),
        *("keys", "positions", "restarts", "orphans", "transactions", "more", "%"),
    )
)
"""Words that follow one."""
_LETTERS = frozenset({"a", "A", "I", "MainThread"})

_QUOTED = re.compile(r"""(?<!\w)(?:'([^'\n]*)'|"([^"\n]*)")(?!\w)""")
_UNIT = re.compile(r"[\w.@:/\\~%+-]*\w[\w.@:/\\~%+-]*")
_NUMBER = re.compile(r"\d[\d,_]*(?:\.\d+)?(?P<unit>%|[a-zA-Z]{0,3})")
_RAISED = re.compile(r"[A-Z]\w*(?:Error|Exception|Warning|InDoubt|Fenced)")
_FRAME = re.compile(r'^(\s*)File "(.*)", line (\d+),? in (.*)$')
_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+")
_HEAD = re.compile(r"^(\d{4}-\d\d-\d\dT[\d:.]+Z) ([A-Z]+) +(\d+) (.*?) ([\w.]+): (.*)$")
_JVM_THREAD = re.compile(r'^"(.*)" ([A-Z_]+)$')
_JVM_FRAME = re.compile(
    r"^    at (?:[\w.@-]*/{1,2})?((?:[\w$]+\.)+[\w$<>/-]+(?:\.[\w$<>]+)*)\(([\w$ ]+(?:\.\w+)?(?::\d+)?)\)$"
)
_JVM_CODE = tuple(
    f"{package}."
    for package in (
        *("java", "javax", "jdk", "sun", "com.sun", "scala", "py4j", "org.apache", "org.sparkproject", "io.netty"),
        *("org.eclipse.jetty", "org.glassfish", "com.fasterxml", "org.rocksdb", "org.slf4j", "org.json4s"),
    )
)
"""How the classes begin that come with Spark."""
_JVM_WORDS = frozenset(
    (
        *("Attach", "Cleaner", "Common", "Destroy", "Dispatcher", "Executor", "Finalizer", "Fork", "Handler", "Java"),
        *("Join", "Listener", "Notification", "Pool", "Reference", "Signal", "TID", "Thread", "Timer", "VM"),
        *("appStatus", "block", "broadcast", "cleaner", "client", "common", "commonPool", "context", "dispatcher"),
        *("driver", "element", "event", "exchange", "executorManagement", "files", "heartbeat", "heartbeater", "idle"),
        *("kafka", "launch", "loop", "manager", "map", "message", "monitor", "netty", "network", "outbox", "output"),
        *("pool", "producer", "qtp", "reaper", "receiver", "refresh", "result", "rpc", "scheduler", "selector"),
        *("server", "shared", "shuffle", "spark", "state", "stderr", "stdin", "stdout", "store", "streaming", "task"),
        *("acceptor", "telemetry", "timeout", "tracking", "worker", "writer"),
    )
)
"""Words of the names that Spark and the JVM give to threads, besides those of Holdfast."""
_PART, _PATH = re.compile(r"\w+"), re.compile(r"\S*/\S*")
_NUMBER_OF_THREAD = 4
"""So many digits a number in such a name may have."""
_LABEL = re.compile(r'(\w+)="((?:\\.|[^"\\])*)"')
_KNOWN_LABELS = frozenset({"state", "stage", "direction", "result", "le", "shard"})
"""Labels of metrics whose values are in the code."""

_TRIPLE = re.compile(r'""".*?"""', re.DOTALL)
_COMMENT = re.compile(r"#.*")


@cache
def known_words() -> frozenset[str]:
    """Return the words of Holdfast's code and messages; those of docstrings and comments, with examples, are left out.

    Examples
    --------
    >>> {"epoch", "published"} <= known_words(), "hunter2" in known_words()
    (True, False)
    """
    found: set[str] = set()
    for path in Path(holdfast.__file__).parent.rglob("*.py"):
        text = _COMMENT.sub("", _TRIPLE.sub("", path.read_text(encoding="utf-8")))
        found.update(re.findall(r"[A-Za-z]{2,}", text))
    return frozenset(found)


class Scrubber:
    """Keeps of texts what is on the list.

    Parameters
    ----------
    names : collection of str
        Of the graph: the pipeline, its nodes and columns.

    Examples
    --------
    >>> scrub = Scrubber({"trips", "speed"})
    >>> scrub.text("epoch 42 of 'trips' has speed 'hunter2' in 12 rows, and salary 75000 at /srv/in")
    "epoch 42 of 'trips' has speed '…' in 12 rows, and … … at …"
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)

    def text(self, text: str) -> str:
        """Return one line or several, as prose."""
        kept = _QUOTED.sub(self._quotation, masked(text))
        units = [*_UNIT.finditer(kept)]
        parts, end = [], 0
        for number, unit in enumerate(units):
            is_counted = (
                _before(kept, unit, units, number) in _NUMBERED or _after(kept, unit, units, number) in _COUNTED
            )
            parts += [_plain(kept[end : unit.start()]), self._unit(unit[0], is_counted=is_counted)]
            end = unit.end()
        return "".join([*parts, _plain(kept[end:])])

    def name(self, name: str) -> str:
        """Return a name of the graph; any other text as prose."""
        return name if name in self._names else self.text(name)

    def value(self, value: Any) -> Any:
        """Return a JSON value: numbers as they are, texts in it and its keys as names or prose."""
        if isinstance(value, str):
            return self.name(value)
        if isinstance(value, Mapping):
            found: dict[str, Any] = {}
            for key, inner in value.items():
                name = self.name(str(key))
                while name in found:
                    name += COVER
                found[name] = self.value(inner)
            return found
        return [self.value(inner) for inner in value] if isinstance(value, list | tuple) else value

    def log(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines of a log file, as :mod:`holdfast.observe.logs` writes them."""
        yield from self.stacks(_as_lines(lines))

    def stacks(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield lines of stacks: of frames the place in an installed package, and no line of source."""
        is_below_frame = False
        for line in lines:
            frame, head = _FRAME.match(line), _HEAD.match(line)
            if frame is not None:
                place = _place(frame[2])
                where = f"in {frame[4]}" if place != COVER and frame[4].isidentifier() else f"in {COVER}"
                yield f'{frame[1]}File "{place}", line {frame[3]}, {where}'
            elif thread := _THREAD.match(line):
                yield f"{thread[1]} (most recent call first):"
            elif head is not None:
                at, level, process, thread_name, logger, message = head.groups()
                yield f"{at} {level:<7} {process} {self.text(thread_name)} {self.text(logger)}: {self.text(message)}"
            elif not (is_below_frame and line.startswith("    ")):
                yield self.text(line)
            is_below_frame = frame is not None or (is_below_frame and line.startswith("    "))

    def jvm_stacks(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield lines of stacks of a JVM: frames of what comes with Spark, and threads by names that these give.

        Examples
        --------
        >>> lines = ['"worker of hunter2" RUNNABLE', "    at java.base/java.lang.Thread.run(Thread.java:840)"]
        >>> [*Scrubber([]).jvm_stacks([*lines, "    at com.acme.Hunter2.run(Hunter2.java:3)"])]
        ['"worker of …" RUNNABLE', '    at java.lang.Thread.run(Thread.java:840)', '    at …']
        """
        for line in lines:
            if frame := _JVM_FRAME.match(line):
                yield f"    at {frame[1]}({frame[2]})" if frame[1].startswith(_JVM_CODE) else f"    at {COVER}"
            elif thread := _JVM_THREAD.match(line):
                yield f'"{self._thread_name(thread[1])}" {thread[2]}'
            else:
                yield self.text(line)

    def _thread_name(self, name: str) -> str:
        """Return the name of a thread, with its numbers where each word of it is known."""
        words = [part for part in _PART.findall(name) if not part.isdecimal()]
        unknown = {word for word in words if word not in known_words() | self._names | _JVM_WORDS}

        def cover_unknown(part: re.Match[str]) -> str:
            is_number = part[0].isdecimal()
            is_kept = not unknown and len(part[0]) <= _NUMBER_OF_THREAD if is_number else part[0] not in unknown
            return part[0] if is_kept else COVER

        return _plain(_PART.sub(cover_unknown, _PATH.sub(COVER, masked(name))))

    def metrics(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield lines of a scrape."""
        for line in lines:
            yield line if line.startswith("#") else _LABEL.sub(self._label, line)

    def _label(self, label: re.Match[str]) -> str:
        return label[0] if label[1] in _KNOWN_LABELS else f'{label[1]}="{self.name(label[2])}"'

    def _quotation(self, quoted: re.Match[str]) -> str:
        inner = quoted[1] if quoted[1] is not None else quoted[2]
        mark = quoted[0][0]
        return quoted[0] if not inner or inner in self._names else f"{mark}{COVER}{mark}"

    def _unit(self, text: str, *, is_counted: bool) -> str:
        core = text.strip(".:-")
        before, _, after = text.partition(core) if core else ("", "", text)
        if not core or core in self._names or core in _LETTERS or _RAISED.fullmatch(core.rpartition(".")[2]):
            return text if core in self._names or "." not in core else f"{before}{core.rpartition('.')[2]}{after}"
        if number := _NUMBER.fullmatch(core):
            return text if is_counted or number["unit"] in _COUNTED else f"{before}{COVER}{after}"
        parts = re.split(r"[-.:_+]", core)
        if all(part in known_words() or part in self._names or part in ("s", "") for part in parts):
            return text
        return f"{before}{COVER}{after}"


def _before(text: str, unit: re.Match[str], units: Sequence[re.Match[str]], number: int) -> str:
    """Return the word before one, where only a blank is between them."""
    is_next = number > 0 and text[units[number - 1].end() : unit.start()] == " "
    return units[number - 1][0] if is_next else ""


def _after(text: str, unit: re.Match[str], units: Sequence[re.Match[str]], number: int) -> str:
    is_next = number + 1 < len(units) and text[unit.end() : units[number + 1].start()] == " "
    return units[number + 1][0].strip(".:") if is_next else ""


def _plain(text: str) -> str:
    """Return the signs between words; of other alphabets none."""
    return re.sub(r"[^\x20-\x7e\n\t…]", COVER, text)


def _place(path: str) -> str:
    """Return a file's place in an installed package, or :data:`COVER`.

    Examples
    --------
    >>> _place("/opt/venv/lib/python3.11/site-packages/pyspark/worker.py"), _place("/srv/trips.py")
    ('pyspark/worker.py', '…')
    """
    for mark in ("/site-packages/", "/dist-packages/", "/python/lib/pyspark.zip/"):
        if mark in path:
            return path.rpartition(mark)[2]
    for root in (str(Path(holdfast.__file__).parents[1]), sysconfig.get_path("stdlib")):
        if path.startswith(f"{root}/"):
            return path[len(root) + 1 :]
    return path if path.startswith("<frozen ") else COVER


def _as_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield what a log has as JSON as the other form has it."""
    for line in lines:
        try:
            entry = json.loads(line) if line.startswith("{") else None
        except ValueError:
            entry = None
        if isinstance(entry, dict) and "message" in entry:
            said = [str(entry.get(key, "")) for key in ("at", "level", "logger", "message")]
            text = f"{said[0]} {said[1]} 0 - {said[2]}: {said[3]}\n{entry.get('traceback', '')}"
            yield from text.splitlines()
        else:
            yield line
