"""Checkpoints that do not know which segments their shards have by now: no shard reads what another has read."""

from __future__ import annotations

import shutil
import sys

import pytest

import holdfast as hf
from holdfast.config import Settings
from holdfast.controller.layouts.moving import StandingShard
from holdfast.controller.layouts.rearranging import Rearranging
from holdfast.errors import Corrupt, Diverged, Fenced
from holdfast.graph.trigger import available_now
from tests.spark.test_shards import DIRECTORIES, Place

pytestmark = pytest.mark.spark


@pytest.fixture
def place(tmp_path):
    (tmp_path / "in").mkdir()
    return Place(tmp_path)


def run(place, shards=None):
    place.arrive(*DIRECTORIES)
    place.pipeline().run(checkpoint=place.checkpoint, trigger=available_now(), shards=shards)
    assert place.table() == place.store() == place.ids


def begin_anew(place):
    """Do what the errors advise."""
    shutil.rmtree(place.checkpoint)
    run(place)


@pytest.mark.parametrize(("before", "after"), [(None, 2), (2, 3), (3, 2)])
def test_a_checkpoint_of_before_segments_moved_is_refused(place, before, after):
    """As often as it is tried: the first start has taken the shards over, and planned epochs."""
    run(place, before)
    shutil.copytree(place.checkpoint, place.directory / "copy")
    run(place, after)
    seen = place.table()
    shutil.rmtree(place.checkpoint)
    shutil.copytree(place.directory / "copy", place.checkpoint)
    place.arrive(*DIRECTORIES)
    for _ in range(2):
        with pytest.raises(Diverged, match="checkpoint"):
            place.pipeline().run(checkpoint=place.checkpoint, trigger=available_now())
    assert set(seen) <= set(place.table())
    assert len(place.table()) == len(set(place.table())), "rows are there twice"
    begin_anew(place)


def test_a_checkpoint_that_has_lost_its_layouts_is_refused(place):
    """Shard 0 would go on as one run, and read what all others have read."""
    run(place, 2)
    shutil.rmtree(place.checkpoint / "shards")
    for count in (None, 2, 3):
        with pytest.raises(Corrupt, match="which shard has which segment is gone"):
            place.pipeline().start(checkpoint=place.checkpoint, shards=count)
    begin_anew(place)


def test_one_run_of_which_shards_are_made_while_it_starts_is_fenced(place):
    run(place)
    pipeline = place.pipeline()
    hooks = hf.Hooks(on_setup=lambda: run(place, 2))
    with pytest.raises(Fenced, match="changed by another start"):
        hf.Pipeline("rides", *pipeline.sinks, hooks=hooks).run(checkpoint=place.checkpoint, trigger=available_now())
    run(place)


@pytest.mark.parametrize(("lost", "count"), [(0, None), (1, None), (0, 1)])
def test_a_shard_that_has_lost_its_own_checkpoint_moves_with_its_sinks(place, lost, count):
    """It does not know their columns any more, and the others do; also of shard 0, and of a change that was decided."""
    run(place, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StandingShard, "move", lambda *told, gives: sys.exit())
        with pytest.raises(SystemExit):
            Rearranging(place.pipeline(), place.checkpoint, Settings()).change(3)
    for each in (place.checkpoint if lost == 0 else place.checkpoint / "shards/1").iterdir():
        if each.name not in ("shards", "sources"):
            shutil.rmtree(each) if each.is_dir() else each.unlink()
    run(place, count)
    run(place)
