"""What is refused of a pipeline that is to run in shards, before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.plan.shard_key import check_declared
from holdfast.shards.layout import INDEPENDENT, ShardLayout
from holdfast.shards.naming import SHARDS_MAX
from holdfast.store.local import LocalStore
from holdfast.store.scratch import ScratchedStore

if TYPE_CHECKING:
    from holdfast.starts.context import StartOptions


def shard_key_of(pipeline: Graph) -> str:
    """Return by what the shards of a pipeline keep state apart; empty where none is kept.

    Raises
    ------
    InvalidPipeline
        If state is kept, or rows are replaced, and it is not said in which shard the rows of a key are.
    """
    check_declared(pipeline, independent=pipeline.shards == INDEPENDENT)
    return pipeline.shard_by or pipeline.shards or ""


def check_options(asked: StartOptions) -> None:
    """Refuse what cannot be asked of a start in shards.

    Raises
    ------
    InvalidPipeline
        Naming it.
    """
    compares_one = asked.compares and asked.only_shard is not None
    adds = any(node.source_spec.arguments().get("on_new_column") == "add" for node in asked.pipeline.sources)
    for is_asked, what, why in (
        (
            adds,
            'on_new_column="add" of a source',
            "a shard that is started again has the graph of the others, and would not see the new column.",
        ),
        (compares_one, "compare_on_start= of one alone", "a table holds rows of all of them."),
        (
            bool(asked.begins.state),
            "state=",
            "which shard has a key is decided by the segment in which its first row comes, and no row of a state names "
            "one.",
        ),
    ):
        if is_asked:
            raise InvalidPipeline(
                f"pipeline {asked.pipeline.name!r} is to run in shards, with {what}.",
                why=why,
                do="leave one of the two out: begin with state= as one run; compare when all shards are started; let "
                'sources have on_new_column="rescue", and add the columns between two starts.',
                pipeline=asked.pipeline.name,
            )


def check_shard(pipeline: str, layout: ShardLayout | None, shard: int) -> ShardLayout:
    """Return the layout of a checkpoint; refuse a shard that it does not have.

    Raises
    ------
    InvalidPipeline
        Naming those that there are.
    """
    if layout is None or not 0 <= shard < layout.shard_count:
        there = "none" if layout is None else f"0 to {layout.shard_count - 1}"
        raise InvalidPipeline(
            f"there is no shard {shard} in this checkpoint.",
            why=f"there are {there}.",
            do="start it with shards=N once (holdfast run --shards N), which says which shard reads what.",
            pipeline=pipeline,
        )
    return layout


def check_scratch(pipeline: str, store: LocalStore | ScratchedStore, shard: int) -> None:
    """Refuse to run one shard of a checkpoint in an object store over logs that are not those of all shards.

    Raises
    ------
    InvalidPipeline
        Saying where it can run.
    """
    if isinstance(store, ScratchedStore) and not store.serves():
        raise InvalidPipeline(
            f"shard {shard} cannot run alone over the scratch {store.directory}.",
            why="the logs of what all shards read are in the scratch with which all were started last, and that is "
            "another one, or it was lost.",
            do="give the directory of that one (--spark-checkpoint), if this host sees it; or start all shards here "
            "once, without --only-shard.",
            pipeline=pipeline,
        )


def check_key(pipeline: str, layout: ShardLayout | None, by: str) -> None:
    """Refuse another shard key than segments were dealt by.

    Raises
    ------
    InvalidPipeline
        Naming both.
    """
    if layout is not None and by != layout.by:
        raise InvalidPipeline(
            f"pipeline {pipeline!r} keeps the state of its shards apart by {by or 'nothing'!r}, and did so by "
            f"{layout.by or 'nothing'!r}.",
            why="which segments stay together follows from it, and they have shards already.",
            do="restore it; or give the changed pipeline another name and a new checkpoint.",
            pipeline=pipeline,
        )


def check_count(shard_count: int) -> None:
    """Refuse a number of shards that there cannot be."""
    if not 1 <= shard_count <= SHARDS_MAX:
        raise InvalidPipeline(
            f"shards={shard_count} is no number of shards.",
            why=f"there are 1 to {SHARDS_MAX}.",
            do="write for instance shards=4.",
        )
