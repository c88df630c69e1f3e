"""What the options of calculators are checked for."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import InvalidPipeline


def check_names(options: object, field: str, *, taken: Sequence[str] = (), may_be_none: bool = False) -> None:
    """Check an option that names ports, and keep it as a tuple; one is a text.

    Parameters
    ----------
    options : dataclass
        Frozen; this is called by its ``__post_init__``.
    field : str
        Which of its fields.
    taken : sequence of str
        Names of ports that the calculator has anyway.
    may_be_none : bool
        Whether it does without one.

    Raises
    ------
    InvalidPipeline
        If there is none, or they are not identifiers, each once, and none of those that are taken.
    """
    given = getattr(options, field)
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else (given,)
    are_names = all(isinstance(name, str) and name.isidentifier() and name not in taken for name in names)
    if not are_names or len(set(names)) < len(names) or not (names or may_be_none):
        raise InvalidPipeline(
            f"{field}={given!r} of {type(options).__qualname__} does not name ports.",
            why="each has an identifier of its own"
            + (f", and the calculator has {', '.join(taken)} anyway." if taken else "."),
            do=f'write for instance {field}=("left", "right").',
        )
    object.__setattr__(options, field, names)


def check_numbers(options: object, **least: int | None) -> None:
    """Check options that are whole numbers, each from a lowest one on; None: any.

    Raises
    ------
    InvalidPipeline
        If one is no whole number, or lower.
    """
    for name, lowest in least.items():
        value = getattr(options, name)
        if not isinstance(value, int) or isinstance(value, bool) or (lowest is not None and value < lowest):
            raise InvalidPipeline(
                f"{name}={value!r} of {type(options).__qualname__} is no whole number"
                + (f" from {lowest} on." if lowest is not None else "."),
                do=f"write {name}={lowest or 0}, or another whole number.",
            )
