"""What an error advises exists, and leads out; a new place that raises one needs a row (design/0032)."""

import inspect
from collections import Counter
from pathlib import Path

import pytest

from holdfast.errors import KINDS, HoldfastError
from tests.arch.trees import ROOT
from tests.spec.cures.named import faults_of
from tests.spec.cures.pairing import PAIRING
from tests.spec.cures.scenarios import SCENARIOS as OF_OTHERS
from tests.spec.cures.sites import sites

TABLE = Path(__file__).parent / "cures/table.txt"
SCENARIOS = {**OF_OTHERS, **PAIRING}
WAYS = ("tried", "named", "again", "outside", "person", "bug", "kit")
ROWS = [tuple(line.split(maxsplit=1)) for line in TABLE.read_text().splitlines()]


@pytest.mark.parametrize("module", dict.fromkeys(place.partition(":")[0] for _, place in ROWS))
def test_an_advice_names_only_what_exists(module):
    texts = [text for site in sites() if site.module == module for text in site.texts]
    assert [(text, fault) for text in texts for fault in faults_of(module, text)] == []


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("operators/clip.py", "holdfast resolv TARGET"),
        ("operators/clip.py", "holdfast resolve TARGET --intervall 1s"),
        ("operators/clip.py", "raise HOLDFAST_POISON_ROW"),
        ("operators/clip.py", "write hf.clipp(...)"),
        ("operators/clip.py", "write hf.clip(..., timestmp=3)"),
        ("operators/aggregate/spec.py", "write for instance hf.quantile('x')"),
        ("operators/stateful/merge.py", 'write event_time="t"'),
        ("connectors/kit/sql.py", 'choose on_bad_row="reject".'),
    ],
)
def test_the_lookup_finds_what_does_not_exist(module, text):
    assert faults_of(module, text)


def test_every_place_that_raises_has_a_row_in_the_table_of_cures():
    places, rows = {site.id for site in sites()}, [place for _, place in ROWS]
    assert [place for place in sorted(places) if place not in rows] == [], "give them rows: see design/0032"
    assert [place for place in rows if place not in places] == [], "these raise no longer: drop their rows"
    assert [place for place, count in Counter(rows).items() if count > 1] == []
    assert {way for way, _ in ROWS} <= set(WAYS)


def test_every_place_advises_something_unless_it_is_of_the_simulation_or_passes_an_error_on():
    way_of = {place: way for way, place in ROWS}
    silent = [site.id for site in sites() if not site.texts and way_of[site.id] not in ("kit", "bug")]
    assert silent == sorted(SILENT)


SILENT = [
    "commit/delivery.py:Delivery.ask.ask Unavailable",
    "commit/delivery.py:Delivery.ask.ask Unavailable 2",
    "commit/delivery.py:Delivery.publish.attempt Unavailable",
    "commit/transaction.py:step InternalError",
    "graph/building.py:building.__exit__ InvalidPipeline",
    "operators/aggregate/window.py:ticks InvalidPipeline",
    "plan/cutting.py:_at.__exit__ InvalidPipeline",
    "retry.py:_again Unavailable",
    "types/units.py:refused_destination BadRow",
    "connectors/kit/sql.py:misfit InvalidPipeline",
    "connectors/files/callback.py:CallbackFeed._batch BadRow 2",
    "operators/flow/stored.py:with_key any",
    "state/call.py:_named any",
    "store/records.py:load Corrupt",
]
"""They pass the advice of another error on, or take it from a value: the places where those are made are here too."""


def test_what_is_tried_has_a_scenario_and_every_class_is_tried():
    tried = {place for way, place in ROWS if way == "tried"}
    assert tried == {scenario.site for scenario in SCENARIOS.values()}
    assert {name.partition(":")[0] for name in SCENARIOS} >= set(KINDS) - {"InvalidPipeline"}


@pytest.mark.parametrize("name", SCENARIOS)
def test_following_the_advice_leads_out(name, tmp_path, monkeypatch):
    scenario, made = SCENARIOS[name], []
    build = HoldfastError.__init__

    def noted(self, *arguments, **fields):
        frame = inspect.currentframe().f_back
        made.append((Path(frame.f_code.co_filename), frame.f_lineno))
        build(self, *arguments, **fields)

    monkeypatch.setattr(HoldfastError, "__init__", noted)
    with pytest.raises(HoldfastError) as raised:
        scenario.wrong(tmp_path)
    kind = name.partition(":")[0]
    assert kind not in KINDS or type(raised.value).__name__ == kind
    places = [site.id for file, line in made for site in sites() if ROOT / site.module == file and line in site.lines]
    assert scenario.site in places
    assert scenario.says in raised.value.do
    scenario.right(tmp_path)
