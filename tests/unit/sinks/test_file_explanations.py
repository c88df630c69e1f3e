"""What positions mean, beside the log of a directory: what the log counts, and what an earlier version has left."""

from __future__ import annotations

from pathlib import Path

from holdfast.connectors.kit.files.explanations import explanations_in
from holdfast.ports import Explanation, Held


def test_copies_of_a_source_that_the_log_of_an_earlier_version_does_not_name_count(tmp_path: Path) -> None:
    texts = [Explanation(source, number, f"{number}") for source in ("left", "right") for number in (1, 2, 3)]
    explanations_in(str(tmp_path), "sink 's'").keep(texts)

    def count(held: Held) -> dict[str, int]:
        return dict(explanations_in(str(tmp_path), "sink 's'").count(held))

    assert count(Held(epoch=2)) == {"left": 3, "right": 3}
    assert count(Held(epoch=2, explained={"left": 2})) == {"left": 2, "right": 3}, "nothing beyond what is told"
    assert count(Held(explained={})) == {}, "positions that nobody holds mean nothing"
    kept = explanations_in(str(tmp_path), "sink 's'")
    assert kept.all(kept.count(Held(epoch=2)), []) == texts


def test_a_sink_without_explanations_counts_none(tmp_path: Path) -> None:
    assert explanations_in(str(tmp_path / "positions"), "sink 's'").count(Held(epoch=1, explained={})) == {}
