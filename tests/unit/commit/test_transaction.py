"""The table of an epoch's states (design/0002, "States")."""

import pickle
from itertools import product

import pytest

from holdfast.commit.transaction import TRANSITIONS, Event, State, Transition, step
from holdfast.errors import InternalError

COMBINATIONS = list(product(State, Event))
LINE = Transition(1_000_000, 7, 2, State.OPEN, Event.STAGE, State.STAGED, "table", "3 rows")


def test_every_combination_of_state_and_event_has_exactly_one_entry():
    assert list(TRANSITIONS) != []
    assert set(TRANSITIONS) == set(COMBINATIONS)
    assert len(TRANSITIONS) == len(State) * len(Event)


@pytest.mark.parametrize(("state", "event"), [pair for pair in COMBINATIONS if TRANSITIONS[pair] is not None])
def test_a_legal_event_leads_to_the_state_in_the_table(state, event):
    assert step(state, event) is TRANSITIONS[state, event]


@pytest.mark.parametrize(("state", "event"), [pair for pair in COMBINATIONS if TRANSITIONS[pair] is None])
def test_an_illegal_event_names_state_event_and_story(state, event):
    with pytest.raises(InternalError) as caught:
        step(state, event, story=[LINE])
    assert state.name in caught.value.message
    assert event.name in caught.value.message
    assert str(LINE) in caught.value.message
    assert caught.value.epoch == 7


def test_once_decided_an_epoch_goes_only_on_unless_its_rows_are_gone():
    decided = (State.DECIDED, State.PUBLISHING, State.IN_DOUBT, State.PUBLISHED, State.FORGOTTEN)
    others = set(Event) - {Event.REVOKE}
    assert {TRANSITIONS[state, event] for state in decided for event in others} - {None} == {*decided} - {State.DECIDED}
    assert [state for state in State if TRANSITIONS[state, Event.REVOKE]] == [State.FORGOTTEN]


def test_every_state_can_be_reached_and_from_the_end_only_a_revocation_leads_out():
    reached, border = {State.OPEN}, [State.OPEN]
    while border:
        state = border.pop()
        for event in Event:
            following = TRANSITIONS[state, event]
            if following is not None and following not in reached:
                reached.add(following)
                border.append(following)
    assert reached == set(State)
    others = set(Event) - {Event.REVOKE}
    assert [state for state in State if not any(TRANSITIONS[state, event] for event in others)] == [State.FORGOTTEN]


def test_a_line_of_a_story_reads_as_a_sentence_and_survives_pickling():
    assert str(LINE) == "1.000 epoch 7: OPEN --STAGE--> STAGED sink 'table' (3 rows)"
    assert pickle.loads(pickle.dumps(LINE)) == LINE
