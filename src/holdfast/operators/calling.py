"""Asks about the rows of a batch: each key that has no recorded answer once, a bounded number at a time.

Invariants: a call begins only where fewer than ``max_concurrency`` are in flight in the process, and one is in flight
until its answer is on the disk; a key is in flight once in the process; a row leaves with the answer that is recorded,
whoever asked for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import isfinite
from typing import Any

import pyarrow as pa

from holdfast.errors import HoldfastError, InvalidPipeline, Unavailable
from holdfast.health import CallStatus
from holdfast.masking import masked
from holdfast.operators.answers import Answers, RecordedAnswer, costs_of_answers, costs_recorded

_PAUSE_S = 0.1
"""Before the second attempt; before each further one twice as long."""


COUNTED = ("calls", "retries", "failed", "reused", "seconds")
"""What is counted of every call; a function may report more."""


@dataclass(frozen=True)
class Answer:
    """What a function of :func:`holdfast.call` may return in place of a dict, to say what the answer has cost.

    Parameters
    ----------
    columns : mapping, optional
        The columns of the answer; None for nulls.
    cost : mapping of str to number
        What it has cost: ``{"tokens": 21}``.  It is added up in the status, by name.

    Examples
    --------
    ::

        async def ask(row, client):
            answer = await client.chat.completions.create(...)
            return hf.Answer({"mood": answer.choices[0].message.content}, cost={"tokens": answer.usage.total_tokens})
    """

    columns: Mapping[str, Any] | None
    cost: Mapping[str, float]


@dataclass(frozen=True)
class Asking:
    """How a service is asked.

    Parameters
    ----------
    max_concurrency : int
        Calls in flight.
    timeout_s : float
        Of an attempt.
    retries : int
        Further attempts.
    interval_s : float
        Seconds between the beginnings of two attempts; 0 for none.
    """

    max_concurrency: int
    timeout_s: float
    retries: int
    interval_s: float


@dataclass(frozen=True)
class Calls:
    """Add answers to the rows of a batch.  Picklable, where the functions are.

    Parameters
    ----------
    fn : callable
        ``await fn(row)``, or ``await fn(row, client)`` where there is a set-up.
    setup : callable, optional
        Returns the client, or a coroutine that does.
    key : tuple of str
        The columns that say what is asked.
    answer : pa.Schema
        Of the answer.
    error : str, optional
        The column that says why there is none.
    path : str
        The file of answers.
    name : str
        Of the operator.
    asking : Asking
        How fast, how often.
    """

    fn: Callable[..., Any]
    setup: Callable[[], Any] | None
    key: tuple[str, ...]
    answer: pa.Schema
    error: str | None
    path: str
    name: str
    asking: Asking

    def open_service(self) -> Service:
        """Return what a process asks with: called once in each, and run."""
        return Service(self)

    def __call__(self, batch: pa.RecordBatch, service: Service) -> pa.RecordBatch:
        """Return the rows with their answers, in their order."""
        keys = _texts(batch.select(list(self.key)))
        answers = service.answers_of(keys, batch)
        rows = [pa.ipc.read_record_batch(pa.py_buffer(answers[key].row), self.answer) for key in keys]
        table = pa.Table.from_batches(rows, self.answer)
        columns = [pa.concat_arrays(column.chunks) for column in table.columns]
        names = list(self.answer.names)
        if self.error is not None:
            columns.append(pa.array([answers[key].error for key in keys], pa.string()))
            names.append(self.error)
        return pa.RecordBatch.from_arrays([*batch.columns, *columns], names=[*batch.schema.names, *names])

    def status(self) -> CallStatus:
        """Return what it has cost so far, as the file of answers has it."""
        amounts = dict(costs_recorded(self.path, self.recorded_as))
        calls, retries, failed, reused, seconds = (amounts.pop(name, 0) for name in COUNTED)
        return CallStatus(self.name, int(calls), int(retries), int(failed), int(reused), seconds, amounts)

    @property
    def recorded_as(self) -> str:
        """What its answers are recorded under: an answer to other columns, or of another schema, is none."""
        asked = json.dumps([self.key, self.answer.to_string()])
        return f"{self.name}/{hashlib.sha256(asked.encode()).hexdigest()[:12]}"


def _texts(key: pa.RecordBatch) -> list[str]:
    """Return a text for the key of each row; the same for the same values."""
    return [json.dumps(list(values), default=str) for values in zip(*(c.to_pylist() for c in key.columns), strict=True)]


class Service:
    """What a process asks of one service: its event loop, its client, and the answers on disk.  For several threads.

    Parameters
    ----------
    calls : Calls
        What is asked.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=_run, args=(self._loop,), name=f"call {calls.name}", daemon=True).start()
        self._disk = ThreadPoolExecutor(1, thread_name_prefix=f"answers {calls.name}")
        self._recorded = Answers(calls.path, calls.recorded_as)
        weakref.finalize(self, _end, self._loop, self._disk, self._recorded).atexit = False
        self._asking: dict[str, asyncio.Task[dict[str, RecordedAnswer]]] = {}
        self._unrecorded: dict[str, tuple[RecordedAnswer, asyncio.Future[RecordedAnswer]]] = {}
        self._unspent: dict[str, float] = {}
        self._writing: asyncio.Task[None] | None = None
        self._slots = asyncio.Semaphore(calls.asking.max_concurrency)
        self._next_s = 0.0
        self._client: tuple[Any, ...] = ()
        if calls.setup is not None:
            self._client = (asyncio.run_coroutine_threadsafe(self._made_client(), self._loop).result(),)

    def answers_of(self, keys: Sequence[str], batch: pa.RecordBatch) -> dict[str, RecordedAnswer]:
        """Return the answer of each key, which is recorded.

        Parameters
        ----------
        keys : sequence of str
            Of each row of the batch.
        batch : pa.RecordBatch
            The rows.
        """
        first: dict[str, int] = {}
        for number, key in enumerate(keys):
            first.setdefault(key, number)
        found = self._disk.submit(self._find, list(first)).result()
        self._require_answers(found)
        if missing := {key: number for key, number in first.items() if key not in found}:
            rows = batch.take(pa.array(list(missing.values()), pa.int64())).to_pylist()
            asked = self._answers_to(dict(zip(missing, rows, strict=True)))
            found.update(asyncio.run_coroutine_threadsafe(asked, self._loop).result())
            self._require_answers(found)
        return found

    def _find(self, keys: Sequence[str]) -> dict[str, RecordedAnswer]:
        """Return what is recorded of keys, and count it."""
        found = self._recorded.find(keys)
        if found:
            self._recorded.spend({"reused": len(found)})
        return found

    def _require_answers(self, found: Mapping[str, RecordedAnswer]) -> None:
        """Refuse failures that were recorded to be kept or rejected: there is no column that would say so."""
        if self._calls.error is not None:
            return
        failed = {key: answer.error for key, answer in found.items() if answer.error is not None}
        if not failed:
            return
        key, said = next(iter(failed.items()))
        raise Unavailable(
            f"call {self._calls.name!r} has failures for answers: {len(failed)} of {len(found)} keys.",
            why=f'they were recorded with on_fail="keep" or "reject", and a recorded answer is never changed; the '
            f"first: {key}, {said}.",
            do=f"to ask again about these, delete them from {self._calls.path}: DELETE FROM answers WHERE "
            f'call = \'{self._calls.recorded_as}\' AND error IS NOT NULL; or write on_fail="keep" or "reject".',
            participant=self._calls.name,
        )

    async def _made_client(self) -> Any:
        assert self._calls.setup is not None
        try:
            made = self._calls.setup()
            return await made if inspect.isawaitable(made) else made
        except HoldfastError:
            raise
        except Exception as error:
            raise Unavailable(
                f"the setup of call {self._calls.name!r} raised {type(error).__name__}.",
                why=f"{' '.join(str(error).split()) or 'it has no message'}.",
                do="make sure that the service answers, or fix the function; then start again.",
                participant=self._calls.name,
            ) from error

    async def _answers_to(self, rows: dict[str, Any]) -> dict[str, RecordedAnswer]:
        """Ask about rows; of keys that another batch is asking about, await what it gets: answers, or its failure."""
        others = {key: self._asking[key] for key in rows if key in self._asking}
        own = {key: row for key, row in rows.items() if key not in others}
        asking = self._loop.create_task(self._ask_all(own))
        self._asking |= dict.fromkeys(own, asking)
        try:
            answers = dict(await asking)
        finally:
            for key in own:
                del self._asking[key]
        for key, other in others.items():
            answers[key] = (await other)[key]
        if others:
            await self._loop.run_in_executor(self._disk, self._recorded.spend, {"reused": len(others)})
        return answers

    async def _ask_all(self, rows: dict[str, Any]) -> dict[str, RecordedAnswer]:
        """Ask about rows; where one fails, those in flight are still awaited, so that their answers are recorded."""
        # Another thread may have recorded some since this one looked; from here on none does: they are in _asking.
        answers = await self._loop.run_in_executor(self._disk, self._find, list(rows))
        failures: list[BaseException] = []
        waiting = iter([(key, row) for key, row in rows.items() if key not in answers])

        async def ask_in_turn() -> None:
            for key, row in waiting:
                async with self._slots:
                    if failures:
                        return
                    try:
                        answers[key] = await self._record(key, await self._ask(row))
                    except Exception as error:
                        failures.append(error)

        await asyncio.gather(*(ask_in_turn() for _ in range(min(len(rows), self._calls.asking.max_concurrency))))
        if failures:
            await self._loop.run_in_executor(self._disk, self._recorded.spend, self._costs_due())
            raise failures[0]
        return answers

    async def _ask(self, row: dict[str, Any]) -> RecordedAnswer:
        calls, asking = self._calls, self._calls.asking
        started = time.perf_counter()
        for attempt in range(asking.retries + 1):
            await self._turn()
            try:
                made = await asyncio.wait_for(calls.fn(row, *self._client), asking.timeout_s)
            except HoldfastError:
                raise
            except Exception as error:
                failure = error
            else:
                return RecordedAnswer(self._row_of(made), None, attempt + 1, time.perf_counter() - started)
            if attempt < asking.retries:
                await asyncio.sleep(_PAUSE_S * 2**attempt)
        said = masked(f"{type(failure).__name__}: {' '.join(str(failure).split()) or 'it has no message'}")
        if calls.error is not None:
            return RecordedAnswer(self._row_of(None), said, asking.retries + 1, time.perf_counter() - started)
        self._due(costs_of_answers([RecordedAnswer(b"", said, asking.retries + 1, time.perf_counter() - started)]))
        raise Unavailable(
            f"call {calls.name!r} has no answer after {asking.retries + 1} attempt(s).",
            why=f"{said}.",
            do="make sure that the service answers, then start again: answers so far are recorded; or write "
            'on_fail="reject", and rows that have none are the side output .rejects.',
            participant=calls.name,
        ) from failure

    async def _turn(self) -> None:
        """Wait until the rate allows another attempt."""
        if not self._calls.asking.interval_s:
            return
        now = time.monotonic()
        at = max(self._next_s, now)
        self._next_s = at + self._calls.asking.interval_s
        await asyncio.sleep(at - now)

    def _row_of(self, made: Any) -> bytes:
        """Return an answer as a row."""
        schema = self._calls.answer
        if isinstance(made, Answer):
            self._note_cost(made.cost)
            made = made.columns
        given = dict.fromkeys(schema.names) if made is None else made
        try:
            if set(given) - set(schema.names):
                raise ValueError(f"it has the members {sorted(given)}")
            batch = pa.RecordBatch.from_pylist([dict(given)], schema)
        except (TypeError, ValueError, pa.ArrowException) as error:
            raise InvalidPipeline(
                f"call {self._calls.name!r} returned an answer that does not have its schema.",
                why=f"{' '.join(str(error).split())}; declared: {', '.join(schema.to_string().splitlines())}.",
                do="return a dict with the columns of schema=, or correct schema=.",
                participant=self._calls.name,
            ) from error
        row: bytes = batch.serialize().to_pybytes()
        return row

    def _note_cost(self, cost: Any) -> None:
        """Take in what the function reports."""
        try:
            amounts = {str(name): float(amount) for name, amount in cost.items()}
            if wrong := sorted(name for name, amount in amounts.items() if name in COUNTED or not isfinite(amount)):
                raise ValueError(f"{wrong[0]!r} is counted already, or no number")
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidPipeline(
                f"call {self._calls.name!r} reports a cost that cannot be added up.",
                why=f"{' '.join(str(error).split())}; counted are {', '.join(COUNTED)}, and what else it reports.",
                do='return for instance hf.Answer({...}, cost={"tokens": 21}).',
                participant=self._calls.name,
            ) from error
        self._due(amounts)

    def _due(self, costs: Mapping[str, float]) -> None:
        for name, amount in costs.items():
            self._unspent[name] = self._unspent.get(name, 0) + amount

    def _costs_due(self) -> dict[str, float]:
        """Return what is not recorded yet of costs, once."""
        costs, self._unspent = self._unspent, {}
        return costs

    async def _record(self, key: str, answer: RecordedAnswer) -> RecordedAnswer:
        """Return what counts of a key, once it is on the disk: what arrives meanwhile is written together."""
        done: asyncio.Future[RecordedAnswer] = self._loop.create_future()
        self._unrecorded[key] = answer, done
        if self._writing is None:
            self._writing = self._loop.create_task(self._write())
        return await done

    async def _write(self) -> None:
        while some := self._unrecorded:
            self._unrecorded = {}
            answers = {key: answer for key, (answer, _) in some.items()}
            self._due(costs_of_answers(answers.values()))
            costs = self._costs_due()
            try:
                counting = await self._loop.run_in_executor(self._disk, self._recorded.record, answers, costs)
            except Exception as error:
                for _, done in some.values():
                    done.set_exception(error)
            else:
                for key, (_, done) in some.items():
                    done.set_result(counting[key])
        self._writing = None


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _end(loop: asyncio.AbstractEventLoop, disk: ThreadPoolExecutor, recorded: Answers) -> None:
    loop.call_soon_threadsafe(loop.stop)
    disk.shutdown()
    recorded.close()
