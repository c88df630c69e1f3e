"""Runs the four pipelines, kills them again and again, and plays what they wrote.  ``make video-demo`` calls this.

Ends with ``video-demo: frames=<n> duplicates=0 lost=0 differences=0 kills=<n> seconds=<s>``; exit code 1 when that is
not true.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import psycopg
from rich.console import Console

from demo import closing
from demo.watch import kafka_rows, postgres_rows
from demo.wipe import FREQUENT, kept, wipe
from examples.video.footage import bring_in
from holdfast.connectors.byte_stream.branch import branches
from holdfast.demo.driver import exit_code, prepare_java
from holdfast.demo.kills import DemoFailed
from holdfast.demo.processes import Running, kill_one, kill_tree, start
from holdfast.demo.watch import Counter, SinkWatch, sqlite_rows
from holdfast.testing.servers.kafka import kafka_server
from holdfast.testing.servers.postgres import postgres_dsn, scratch_schema

HERE = Path(__file__).resolve().parent
TABLES = ("events", "both_events", "gate_events", "left_events", "pair_events")
PIPELINES = ("events", "annotate", "both", "gate", "left", "pair")
VICTIMS = ("driver", "JVM", "worker")
HANGS_AFTER_S = 240.0
LOOK_S = 0.05


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return 0 when every frame is in every sink once."""
    options = _options(arguments)
    console = Console(highlight=False)
    return exit_code(lambda: _demo(options, console), console)


def _demo(options: argparse.Namespace, console: Console) -> int:
    began = time.monotonic()
    work: Path = options.work
    shutil.rmtree(work, ignore_errors=True)
    prepare_java(console)
    console.print(f"sink={options.sink} seed={options.seed} kills={options.kills}: {options.seconds} s of 3 cameras")
    bring_in(work, options.seconds, options.seed)
    environment = {
        "VIDEO_WORK": str(work),
        "VIDEO_ROWS": str(options.rows),
        "VIDEO_MODEL": options.model,
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]),
        "PYTHONUNBUFFERED": "1",
        **(FREQUENT if options.wipe else {}),
    }
    with ExitStack() as stack:
        models = stack.enter_context(TemporaryDirectory(prefix="video-"))  # of sockets, whose paths are short
        events = _events(options, stack)
        environment |= {"HOLDFAST_MODELS": models, **events.environment}
        lives = Lives(options, environment, SinkWatch(events.counters), console)
        lives.live()
        os.environ.update(environment)
        from examples.video import play, verify  # here: what they import reads the environment

        contents = verify.verify(work, options.seconds, events.dsn, events.broker)
        videos = {name: verify.video_of(work, name) for name in ("both_video", "left_video", "pair_video")}
    play.contact_sheet(videos, work / "contact_sheet.png")
    for name, container in videos.items():
        play.to_mp4(container, work / f"{name}.mp4")
    closing.say(contents, console, "frames")
    console.print(f"to be looked at: {work}/contact_sheet.png, {', '.join(f'{name}.mp4' for name in videos)}")
    kills, seconds = lives.kill_count, time.monotonic() - began
    print(closing.closing_line("video-demo", contents, unit="frames", kills=kills, seconds=seconds), flush=True)
    return 0 if all(each.is_exact for each in contents) and kills == options.kills else 1


@dataclass(frozen=True)
class Events:
    """Where events go, and how they are counted."""

    counters: dict[str, Counter]
    environment: dict[str, str] = field(default_factory=dict)
    dsn: str | None = None
    broker: str | None = None


def _events(options: argparse.Namespace, stack: ExitStack) -> Events:
    """Start what the events go to, for as long as the stack is open."""
    if options.sink == "postgres":
        dsn = stack.enter_context(scratch_schema(stack.enter_context(postgres_dsn()), "holdfast_video"))
        watcher = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        return Events({name: postgres_rows(watcher, name) for name in TABLES}, {"VIDEO_DSN": dsn}, dsn=dsn)
    if options.sink == "kafka":
        from confluent_kafka.admin import AdminClient, NewTopic

        broker = stack.enter_context(kafka_server()).bootstrap
        topics = [NewTopic(name, 1, 1) for name in (*TABLES, "damaged")]
        admin = AdminClient({"bootstrap.servers": broker})  # it must live until the topics are there
        for each in admin.create_topics(topics).values():
            each.result(30)
        return Events({name: kafka_rows(broker, name) for name in TABLES}, {"VIDEO_KAFKA": broker}, broker=broker)
    return Events({name: sqlite_rows(options.work / f"{name}.db", name) for name in TABLES})


@dataclass
class Lives:
    """The pipelines in one process after the other, until they have come to the end."""

    options: argparse.Namespace
    environment: Mapping[str, str]
    watch: SinkWatch
    console: Console
    kill_count: int = 0
    run_count: int = 0
    last: Running | None = None
    chance: random.Random = field(init=False)

    held: dict[str, int] = field(default_factory=dict)
    """Pipeline -> the epoch of which a wipe has left the snapshot."""
    victims: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.options.seed)
        rounds = [self.chance.sample(VICTIMS, len(VICTIMS)) for _ in range(self.options.kills)]
        self.victims = [victim for each in rounds for victim in each]

    def live(self) -> None:
        """Run, and kill; a JVM or a worker that dies may take the run with it, or be replaced by another one."""
        running = self._start()
        try:
            while True:
                has_ended = self._await_moment(running)
                if has_ended and running.process.returncode == 0:
                    if self.kill_count < self.options.kills:
                        raise DemoFailed(f"the input was used up after {self.kill_count} kills; try another seed")
                    return
                if not has_ended:
                    has_ended = self._kill(running)
                elif not self.kill_count:
                    raise DemoFailed(f"the run failed:\n{running.log_tail()}")
                if has_ended:
                    kill_tree(running)
                    running = self._start()
        finally:
            kill_tree(running)

    def _start(self) -> Running:
        if self.options.wipe and self.run_count:
            self._wipe()
        self.run_count += 1
        if self.run_count > 3 * (self.options.kills + 1):
            raise DemoFailed(f"runs fail again and again; the last one:\n{self.last.log_tail() if self.last else ''}")
        log = self.options.work / "logs" / f"run-{self.run_count}.log"
        self.last = start([sys.executable, "-m", "examples.video.run_all"], log, self.environment)
        return self.last

    def _await_moment(self, running: Running) -> bool:
        """Wait for the next moment to kill; return whether the run has ended before."""
        before, kills_left = self.watch.look().total, self.options.kills - self.kill_count
        share = self.chance.uniform(0.05, 0.6)
        wanted = before + max(1, int(share * (self._expected - before) / (kills_left + 1)))
        delay_s = self.chance.uniform(0, 0.5)
        hangs_at = time.monotonic() + HANGS_AFTER_S
        while not running.has_ended:
            if kills_left and self.watch.look().total >= wanted and self._may_be_killed():
                time.sleep(delay_s)
                return running.has_ended
            if time.monotonic() > hangs_at:
                raise DemoFailed(f"nothing happens for {HANGS_AFTER_S:.0f} s:\n{running.log_tail()}")
            time.sleep(LOOK_S)
        return True

    @property
    def _expected(self) -> int:
        """How many events there will be; of the pair about two thirds of those of one camera."""
        return int(self.options.seconds * 15 * 4.6)

    def _kill(self, running: Running) -> bool:
        """Kill the driver with all it has started, its JVM, or a worker; return whether the run is over."""
        victim = self.victims[self.kill_count]
        tree = psutil.Process(running.process.pid).children(recursive=True)
        found = [process for process in tree if _is(process, victim)]
        self.kill_count += 1
        number = f"kill {self.kill_count}: {victim} at {self.watch.samples[-1].total:,} events"
        if victim == "driver" or not found:
            count = kill_tree(running)
            self.console.print(f"{number}, {count} processes")
            return True
        kill_one(self.chance.choice(found).pid)
        self.console.print(f"{number}, alone")
        return False

    def _may_be_killed(self) -> bool:
        # A start without any state would be refused: it could not tell what was lost.
        return not self.options.wipe or all(kept(self._checkpoint(name), self._held(name)) for name in PIPELINES)

    def _wipe(self) -> None:
        for name in PIPELINES:
            checkpoint, held = self._checkpoint(name), self._held(name)
            if snapshot := kept(checkpoint, held):
                self.console.print(f"{name}: {wipe(checkpoint, held)}")
                self.held[name] = snapshot.epoch

    def _checkpoint(self, name: str) -> Path:
        return Path(self.options.work / "checkpoint" / name)

    def _held(self, name: str) -> int:
        """Return an epoch that the sinks of a pipeline hold, beside those that its decisions tell."""
        if name != "annotate":
            return self.held.get(name, 0)
        branch = branches(str(self.options.work / "videos")).get("annotate/annotated")  # of one sink: it has the word
        last = branch.log.last() if branch else None
        return last.epoch if last else 0


def _is(process: psutil.Process, victim: str) -> bool:
    try:
        name, command = process.name(), " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False
    if victim == "JVM":
        return name == "java"
    return "python" in name and ("worker" in command or "daemon" in command)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.video.drive", description="Kill cameras, lose no frame.")
    parser.add_argument("--sink", choices=("sqlite", "postgres", "kafka"), default="sqlite", help="where the events go")
    parser.add_argument("--seed", type=int, help="seed of the scene and of the kills; random and printed when absent")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--wipe", action="store_true", help="remove the checkpoints after every kill, but one snapshot")
    parser.add_argument("--seconds", type=float, default=60, help="length of the video")
    parser.add_argument("--rows", type=int, default=45, help="packets of a camera in an epoch, at most")
    parser.add_argument("--model", default="", help="an ONNX file instead of the classical detector")
    parser.add_argument("--work", type=Path, default=HERE / "out", help="everything goes here; emptied first")
    options = parser.parse_args(arguments)
    options.work = options.work.absolute()
    options.model = os.path.abspath(options.model) if options.model else ""
    if options.seed is None:
        options.seed = int(os.environ.get("HOLDFAST_SEED") or random.SystemRandom().randrange(10_000))
    return options


if __name__ == "__main__":
    sys.exit(main())
