"""What a checkpoint says of itself."""

import json
import socket

from holdfast.checkpoint.store import open_store
from holdfast.observe.inspection import inspect_checkpoint


def test_the_owner_is_the_highest_generation_by_number_and_not_by_the_text_of_its_key(tmp_path):
    store = open_store(str(tmp_path))
    for generation in (99_999_999, 100_000_000, 2):
        owner = {"at_us": 1, "host": socket.gethostname(), "pid": generation}
        store.put(f"generations/{generation:08d}.json", json.dumps(owner).encode())
    owner = inspect_checkpoint(str(tmp_path), store, tmp_path).owner
    assert (owner.generation, owner.pid) == (100_000_000, 100_000_000)


def test_a_checkpoint_that_nobody_took_over_has_no_owner(tmp_path):
    assert inspect_checkpoint(str(tmp_path), open_store(str(tmp_path)), tmp_path).owner.generation == 0
