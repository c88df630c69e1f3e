"""The process of a shared model: ``python -m holdfast.models.process``, started by :mod:`holdfast.models.starting`.

It is told on stdin what to load, and holds a lock that it was given as long as it lives.  On stdout it says that it
listens, or the record of what went wrong; whatever is printed after that goes to its log.  It leaves its parent at
once: it serves others, too.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import sys
import traceback
from contextlib import suppress

from holdfast.errors import HoldfastError, InvalidPipeline
from holdfast.models.computing import ModelLoop, failure
from holdfast.models.declaration import Declaration
from holdfast.models.server import ModelServer
from holdfast.models.wire import LISTENS


def main() -> None:
    """Serve until nobody calls any more."""
    if os.fork():
        os._exit(0)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    faulthandler.enable()
    # Module path, declaration, descriptor of the lock, and how many processes have died before.
    path, pickled, lock, restart_count = pickle.loads(sys.stdin.buffer.read())
    os.set_inheritable(lock, False)
    os.pwrite(lock, f"{restart_count + 1} {os.getpid()}".encode(), 0)
    sys.path += [entry for entry in path if entry not in sys.path]
    with suppress(BrokenPipeError):  # who has started it is gone; others call
        try:
            declared: Declaration = pickle.loads(pickled)
            loop = _load(declared, restart_count)
        except Exception as error:
            traceback.print_exc()
            record = error.record() if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
            answers.write(record.encode())
            answers.flush()
            os._exit(1)
        place = declared.place()
        place.socket.unlink(missing_ok=True)  # of one that died: the lock is ours
        server = ModelServer(place, loop)
        answers.write(LISTENS)
        answers.close()
    server.run()
    place.socket.unlink(missing_ok=True)
    os.ftruncate(lock, 0)
    os._exit(0)  # a frozen caller, or a thread of the function, must not keep it


def _load(declared: Declaration, restart_count: int) -> ModelLoop:
    try:
        function = declared.load()
    except Exception as error:
        raise failure(declared, "cannot be loaded", error) from error
    if not callable(function):
        raise InvalidPipeline(
            f"Model {declared.name!r} cannot be called.",
            why=f"fn is a class, and its objects have no __call__: {function!r}.",
            do="give the class a method __call__(self, batch).",
            participant=declared.name,
        )
    return ModelLoop(declared, function, restart_count=restart_count)


if __name__ == "__main__":
    main()
