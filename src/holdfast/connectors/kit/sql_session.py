"""A connection to a system of SQL during a run: transactions, whose COMMIT may be in doubt, and errors in our words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal

from holdfast.connectors.kit.sql_table import Connection
from holdfast.errors import HoldfastError, InDoubt, Unavailable

Begin = Literal["write", "read"]


class SqlSession(ABC):
    """A connection that is opened when it is needed, and replaced when it broke.

    Parameters
    ----------
    node : str
        ``sink 'name'``, for errors.
    place : str
        Where the database is, for errors.
    pipeline, sink : str
        Identity.
    """

    errors: ClassVar[type[Exception]]
    """What the driver raises."""
    system: ClassVar[str]
    """Its name, for people."""

    def __init__(self, node: str, place: str, pipeline: str, sink: str) -> None:
        self.node = node
        self.place = place
        self.pipeline = pipeline
        self.sink = sink

    # --- what a system says -----------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def address(self) -> object:
        """Equal for sessions with one database."""

    @abstractmethod
    def beside(self) -> SqlSession:
        """Return another session with the same database: for trials beside a publish, and for views."""

    @abstractmethod
    def connection(self) -> Connection:
        """Return the connection, outside of any transaction."""

    @abstractmethod
    def again(self) -> Connection:
        """Return a fresh one: after a COMMIT whose answer was lost only that shows what is held."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection.  Does not raise."""

    @abstractmethod
    def begin(self, connection: Connection, how: Begin) -> None:
        """Begin a transaction that writes, or one that reads what is there at one moment."""

    @abstractmethod
    def translate(self, error: Exception) -> HoldfastError:
        """Return the driver's error in our words, its kind chosen by what the user should do."""

    def is_refusal(self, error: Exception) -> bool:
        """Return whether an error of COMMIT says that nothing was kept."""
        return False

    def check(self) -> None:
        """Raise :class:`~holdfast.errors.Unavailable` where a COMMIT would not go where the transaction began."""
        return

    def check_commit(self) -> None:
        """Raise :class:`~holdfast.errors.InDoubt` where a COMMIT may have gone elsewhere."""
        return

    def end_owner(self, error: Unavailable) -> bool:
        """End the session that holds the ledger row, if a takeover failed because it waits for it: a frozen run's.

        Its transaction is undone as a whole, or committed already.
        """
        return False

    # --- what all of them do ----------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Commit at the block's end; an error in the block rolls back, one of COMMIT itself may leave it in doubt."""
        with self.explained():
            connection = self.connection()
            self.begin(connection, "write")
            try:
                self.check()
                yield connection
                self.check()
            except BaseException:
                self._roll_back(connection)
                raise
        self.commit(connection)
        self.check_commit()

    def commit(self, connection: Connection) -> None:
        """Commit what is open.

        Raises
        ------
        InDoubt
            If nobody knows whether it was kept.
        """
        try:
            connection.execute("COMMIT")
        except self.errors as error:
            self.close()
            if self.is_refusal(error):
                raise self.translate(error) from error
            raise self.in_doubt(f"{self.system} said: {error}.") from error
        except BaseException:  # interrupted: what this connection says next belongs to the past
            self.close()
            raise

    @contextmanager
    def after_commits(self) -> Iterator[Connection]:
        """Yield a fresh connection, for a question about what has been committed."""
        with self.explained():
            yield self.again()

    @contextmanager
    def rolled_back(self) -> Iterator[Connection]:
        """Roll back at the block's end, whatever happens."""
        yield from self._undone("write")

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Read what is there at one moment."""
        yield from self._undone("read")

    def _undone(self, how: Begin) -> Iterator[Connection]:
        with self.explained():
            connection = self.connection()
            self.begin(connection, how)
            try:
                yield connection
            finally:
                self._roll_back(connection)

    def _roll_back(self, connection: Connection) -> None:
        try:
            connection.execute("ROLLBACK")
        except self.errors:  # what may still be open must not end by the next BEGIN, which in MySQL commits it
            self.close()

    def in_doubt(self, why: str) -> InDoubt:
        """Return the error of a COMMIT of which nobody knows whether it was kept."""
        return InDoubt(
            f"{self.node}: it is unknown whether a COMMIT into {self.place} was kept.",
            why=why,
            do="nothing by hand: the sink is asked next.",
            pipeline=self.pipeline,
            participant=self.sink,
        )

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise the driver's errors of the block as ours."""
        try:
            yield
        except self.errors as error:
            raise self.translate(error) from error
