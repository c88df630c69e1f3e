"""How a live run is steered: its sources are held, and it is asked how far its sinks are (design/0049, 5)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

from holdfast.commit.coordinator import Coordinator
from holdfast.errors import HoldfastError
from holdfast.plan.epoch_times import EpochTimes
from holdfast.ports import Held
from holdfast.positions import Positions, held_by_every
from holdfast.spark.sampling import SampleCall
from holdfast.spark.sight import Followers, Sight
from holdfast.steer.controls import Controls
from holdfast.steer.holding import write_controls
from holdfast.time_use import EpochLine


class RunSteering:
    """Of one run.  Any thread may call.

    Parameters
    ----------
    coordinator : Coordinator
        Of the run.
    stop_directory : Path
        By which its planning processes are told.
    sight : Sight
        Shows what is in force.
    followers : Followers
        Are told what the sinks hold, too.
    newest : callable
        Given what every sink holds, returns where each source ends now, apart from what has nothing in it; raises
        ``InvalidPipeline`` where one cannot tell.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        stop_directory: Path,
        sight: Sight,
        followers: Followers,
        newest: Callable[[Positions], Positions],
    ) -> None:
        self.check_fenced = coordinator.check_fenced
        self.story = coordinator.story
        self._newest = newest
        self.held: Positions = {}
        """The positions before which every sink has everything."""
        self._stop_file = str(stop_directory / "stop")
        self._sight = sight
        self._followers = followers
        self._last_steps: list[Callable[[HoldfastError | None], object]] = []

    def newest(self) -> Positions:
        """Return where each source ends now, apart from what has nothing in it; raises what it was given raises."""
        return self._newest(self.held)

    def epochs(self, after: int = 0) -> list[EpochLine]:
        """Return the last epochs of the run above a number, the newest last."""
        return [line for line in [*self._sight.loop.times.lines] if line.epoch > after]

    def sample(self, call: SampleCall) -> None:
        """Let a caller see rows of later epochs; nothing more where it does already."""
        self._sight.loop.sampling.ask(call, self._stop_file)

    def end_sample(self, call: SampleCall) -> None:
        """Let a caller see no more."""
        self._sight.loop.sampling.forget(call, self._stop_file)

    @property
    def in_spark(self) -> Collection[str]:
        """The nodes that Spark's plan evaluates."""
        return self._sight.in_spark

    def hold(self, controls: Controls) -> None:
        """Hold the sources to what the run was told, from the next epoch on that is planned."""
        self._sight.controls = controls
        with suppress(FileNotFoundError):  # the run has ended, and its directory is gone
            write_controls(self._stop_file, controls)

    def note_held(self, held: Mapping[str, Held]) -> None:
        """Take in what each sink holds."""
        self.held = held_by_every(each.positions for each in held.values()) if held else {}
        self._followers.tell(held)

    def show_letters(self, counts: Callable[[], Mapping[str, int]]) -> None:
        """Show in the status how many dead letters there are."""
        self._sight.letters = counts

    def trace(self, times: EpochTimes) -> None:
        """Tell OpenTelemetry each epoch, until the run ends."""
        from holdfast.metrics.tracing import tracing_of  # its library may be missing

        outbox = tracing_of(self._sight.pipeline.name, self._sight.coordinator.generation)
        times.follow = outbox.put
        self.call_at_end(lambda error: outbox.end())

    def call_at_end(self, step: Callable[[HoldfastError | None], object]) -> None:
        """Have something called with why the run has failed, or None, before who waits for its end is told."""
        self._last_steps.append(step)

    def end(self, error: HoldfastError | None) -> None:
        """Call what is to be called at the end."""
        for step in self._last_steps:
            step(error)
