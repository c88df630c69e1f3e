"""What a sink must do that keeps what its positions mean: one list of promises, run against each (design/0018)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import pytest

from holdfast import faults
from holdfast.capabilities import offers
from holdfast.errors import HoldfastError, InternalError
from holdfast.ports import EpochRecord, Explaining, Explanation, Held, Inspectable, Publication, RunIdentity, Sink
from tests.contract.sink_contract import PIPELINE, Target


class Connecting(Protocol):
    """What gives sinks."""

    def connect(self, name: str = "target", pipeline: str = PIPELINE) -> Sink:
        """Return a new runtime of the sink."""


class ExplainingContract:
    """The promises."""

    def test_what_an_epoch_explains_is_kept_with_it_and_given_back(self, target: Target) -> None:
        sink = opened(target)
        sink.publish([epoch(1, told("lines", 1, 2))], Held())
        sink.publish([epoch(2)], Held())
        sink.publish([epoch(3, told("lines", 3), told("marks", 1))], Held())
        assert kept(sink) == {"lines": texts("lines", 3), "marks": texts("marks", 1)}
        sink.close()
        again = target.connect()
        assert kept(again) == {"lines": texts("lines", 3), "marks": texts("marks", 1)}, "asked before it is opened"
        assert again.open(RunIdentity(PIPELINE, 2)).explained == {"lines": 3, "marks": 1}
        again.close()

    def test_a_fresh_sink_keeps_nothing_and_says_so(self, target: Target) -> None:
        sink = target.connect()
        assert kept(sink) == {}
        assert sink.open(RunIdentity(PIPELINE, 1)).explained == {}
        assert kept(sink) == {}
        sink.close()

    def test_explanations_that_come_again_are_kept_once(self, target: Target) -> None:
        """A new sink lacks all of them, and the epoch carries them for every sink."""
        sink = opened(target)
        for number in range(1, 4):
            sink.publish([epoch(number, told("lines", *range(1, number + 1)))], Held())
        sink.publish([epoch(3, told("lines", 1, 2, 3))], Held())  # in doubt, and published again
        assert kept(sink) == {"lines": texts("lines", 3)}
        sink.close()

    def test_several_epochs_of_one_transaction_explain_one_after_the_other(self, target: Target) -> None:
        sink = opened(target)
        sink.publish([epoch(number, told("lines", number)) for number in (1, 2, 3)], Held())
        assert kept(sink) == {"lines": texts("lines", 3)}
        sink.close()

    def test_what_the_last_epoch_says_of_recent_ends_is_kept_with_it_and_no_other(self, target: Target) -> None:
        """Without Spark's directory, what follows a snapshot is evaluated again in these epochs (design/0018)."""
        sink, other = opened(target), opened(target, name="other")
        sink.publish([epoch(1, told("lines", 1), recent_ends="to 1")], Held())
        sink.publish([epoch(number, recent_ends=f"to {number} \u00e4'") for number in (3, 4)], Held())
        other.publish([epoch(1, recent_ends="to 1")], Held())
        assert kept(sink) == {"lines": texts("lines", 1)}, "it is no explanation"
        sink.close()
        for generation in (2, 3):
            again = target.connect()
            held = again.open(RunIdentity(PIPELINE, generation))
            assert (held.recent_ends, held.explained) == ("to 4 \u00e4'", {"lines": 1})
            again.close()
        again = target.connect()
        held = again.open(RunIdentity(PIPELINE, 4))
        again.publish([epoch(5, generation=4)], held)
        again.close()
        again = target.connect()
        assert again.open(RunIdentity(PIPELINE, 5)).recent_ends == "", "an earlier epoch's would be wrong"
        again.close()
        other.close()

    @pytest.mark.parametrize("point", ["publish-uncommitted", "publish-begun"])
    def test_a_death_within_publish_leaves_what_the_epoch_that_is_held_says(self, target: Target, point: str) -> None:
        sink = opened(target)
        sink.publish([epoch(1, recent_ends="to 1")], Held())

        def dies(reached: str, epoch: int | None = None) -> None:
            if reached == point:
                raise RuntimeError("here")

        faults.install(dies)
        with suppress(RuntimeError, HoldfastError):
            sink.publish([epoch(2, recent_ends="to 2")], Held())
        faults.install(None)
        sink.close()
        again = target.connect()
        held = again.open(RunIdentity(PIPELINE, 2))
        assert held.recent_ends == f"to {held.epoch}"
        again.close()

    def test_a_gap_is_never_kept(self, target: Target) -> None:
        sink = opened(target)
        sink.publish([epoch(1, told("lines", 1))], Held())
        with pytest.raises(InternalError, match="explanation 3 of source 'lines' after 1"):
            sink.publish([epoch(2, told("lines", 3))], Held())
        assert kept(sink) == {"lines": texts("lines", 1)}
        sink.close()

    @pytest.mark.parametrize("last", [99, 100, 101, 250])
    def test_hundreds_are_merged_and_say_the_same(self, target: Target, last: int) -> None:
        sink = opened(target)
        sink.publish([epoch(1, told("lines", *range(1, last - 3)))], Held())
        for number in range(last - 3, last + 1):
            sink.publish([epoch(number, told("lines", number))], Held())
        assert kept(sink) == {"lines": texts("lines", last)}
        sink.close()
        again = target.connect()
        assert again.open(RunIdentity(PIPELINE, 2)).explained == {"lines": last}
        again.publish([epoch(last + 1, told("lines", last + 1), generation=2)], Held())
        assert kept(again) == {"lines": texts("lines", last + 1)}
        again.close()

    @pytest.mark.parametrize("point", ["publish-uncommitted", "publish-begun"])
    def test_a_death_within_publish_leaves_at_most_facts_and_they_may_come_again(
        self, target: Target, point: str
    ) -> None:
        sink = opened(target)

        def dies(reached: str, epoch: int | None = None) -> None:
            if reached == point:
                raise RuntimeError("here")

        faults.install(dies)
        with suppress(RuntimeError, HoldfastError):
            sink.publish([epoch(1, told("lines", 1))], Held())
        faults.install(None)
        sink.close()
        again = target.connect()
        held = again.open(RunIdentity(PIPELINE, 2))
        assert held.epoch == 0 or held.explained == {"lines": 1}, "an epoch without what it explains"
        again.publish([epoch(held.epoch + 1, told("lines", 1, 2), generation=2)], held)
        assert kept(again) == {"lines": texts("lines", 2)}
        again.close()

    def test_two_sinks_of_one_target_keep_their_own(self, target: Target) -> None:
        one, other = opened(target), opened(target, name="other")
        one.publish([epoch(1, told("lines", 1))], Held())
        other.publish([epoch(1, told("lines", 1, 2))], Held())
        assert kept(one) == {"lines": texts("lines", 1)}
        assert kept(other) == {"lines": texts("lines", 2)}
        one.close()
        other.close()

    def test_inspecting_a_sink_changes_nothing_of_it(self, target: Target) -> None:
        sink = opened(target)
        sink.publish([epoch(1, told("lines", 1, 2))], Held())
        if offers(sink, Inspectable):
            held, _ = sink.inspect()
            assert held.epoch == 1
        assert kept(sink) == {"lines": texts("lines", 2)}
        sink.close()


class ReplacedRunContract:
    """Where a run that was replaced may still write: what it leaves is no sink's word."""

    def test_what_a_replaced_run_explains_is_never_believed(self, target: Target) -> None:
        """Its log of files is another one where the checkpoint is in an object store, and its scratch here."""
        replaced, successor = opened(target), target.connect()

        def replace_it(reached: str, epoch: int | None = None) -> None:
            if reached == "publish-uncommitted":
                faults.install(None)
                successor.open(RunIdentity(PIPELINE, 2))

        faults.install(replace_it)
        with pytest.raises(HoldfastError):
            replaced.publish([epoch(1, told("lines", 1, 2))], Held())
        faults.install(None)
        replaced.close()
        assert kept(successor) == {}
        ours = (Explanation("lines", 1, '{"of": "the log that counts"}'),)
        successor.publish([epoch(1, ours, generation=2)], Held())
        successor.close()
        again = target.connect()
        assert again.open(RunIdentity(PIPELINE, 3)).explained == {"lines": 1}
        assert kept(again) == {"lines": ['{"of": "the log that counts"}']}
        again.close()

    def test_what_it_left_beside_the_log_of_an_earlier_version_gives_way_to_entries(self, target: Target) -> None:
        """That version wrote what positions mean before the entry which would have counted."""
        replaced, successor = target.connect(), opened(target)
        for number in (1, 2, 3):
            replaced._explanations.keep([Explanation("lines", number, '{"of": "another log"}')])  # type: ignore[attr-defined]
        replaced.close()
        assert kept(successor) == {}
        for number, several in enumerate([(1, 2), (3,), ()], 1):
            successor.publish([epoch(number, told("lines", *several))], Held())
        assert kept(successor) == {"lines": texts("lines", 3)}
        successor.close()
        again = target.connect()
        assert again.open(RunIdentity(PIPELINE, 2)).explained == {"lines": 3}
        assert kept(again) == {"lines": texts("lines", 3)}
        again.close()

    def test_what_it_left_before_the_first_epoch_is_not_believed_later(self, target: Target) -> None:
        """Nor where the first epochs explain nothing: then no entry names the source."""
        replaced = target.connect()
        for number in (1, 2):
            replaced._explanations.keep([Explanation("lines", number, '{"of": "another log"}')])  # type: ignore[attr-defined]
        replaced.close()
        for number, several in enumerate([(), (1,), (2,)], 1):
            sink = target.connect()
            sink.open(RunIdentity(PIPELINE, number))
            sink.publish([epoch(number, told("lines", *several), generation=number)], Held())
            sink.close()
        again = target.connect()
        assert again.open(RunIdentity(PIPELINE, 4)).explained == {"lines": 2}
        assert kept(again) == {"lines": texts("lines", 2)}
        again.close()


def opened(target: Connecting, name: str = "target") -> Sink:
    """Return an opened sink."""
    sink = target.connect(name)
    sink.open(RunIdentity(PIPELINE, 1))
    return sink


def told(source: str, *numbers: int) -> tuple[Explanation, ...]:
    """Return explanations; what one says follows from its number."""
    return tuple(Explanation(source, number, _text(source, number)) for number in numbers)


def texts(source: str, last: int) -> list[str]:
    """Return what the first ones say."""
    return [_text(source, number) for number in range(1, last + 1)]


def _text(source: str, number: int) -> str:
    return f'{{"first": {number}, "name": "{source}\\u00e4 \'%s\'"}}'


def epoch(
    number: int,
    *explanations: tuple[Explanation, ...],
    generation: int = 1,
    recent_ends: str = "",
) -> Publication:
    """Return an epoch without rows that explains something."""
    record = EpochRecord(PIPELINE, number, generation, {"lines": {"log": 10 * number}}, recent_ends=recent_ends)
    return Publication(replace(record, explanations=tuple(each for of in explanations for each in of)), ())


def kept(sink: Sink) -> dict[str, list[str]]:
    """Return source -> what is kept, and see that it is dense and in order."""
    assert offers(sink, Explaining)
    found: dict[str, list[Explanation]] = {}
    for each in sink.explanations():
        found.setdefault(each.source, []).append(each)
    for source, several in found.items():
        assert [each.number for each in several] == list(range(1, len(several) + 1)), source
    return {source: [each.text for each in several] for source, several in found.items()}
