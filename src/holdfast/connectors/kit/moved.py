"""How a repair ends that finds other rows than those it was made for."""


class Moved(Exception):
    """A row is not where it was, or not what it was: nothing is to be changed."""
