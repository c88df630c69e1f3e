"""Checks the message of a commit: one line that says what the commit does, as one would order it.

    .venv/bin/python -m tools.commit_subject .git/COMMIT_EDITMSG    as the hook of .pre-commit-config.yaml does

Whether a word is an imperative, only a reader can tell.  What this finds are the usual other forms: a prefix, an
article, "Added", "Adds", "Adding".
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

CHARACTERS_MAX = 72

_TEMPORARY = re.compile(r"(fixup|squash|amend)! ")
"""What a rebase will take away again."""

_SCISSORS = re.compile(r"(?m)^# -+ >8 -+$")
_NO_VERBS = {"a", "an", "the", "this", "that", "these", "those", "it", "we", "i", "no", "all", "every", "each", "there"}
_VERBS = {"bias", "focus", "embed", "exceed", "feed", "need", "proceed", "seed", "speed", "bring", "ping", "string"}
"""Imperatives that look like another form."""


def faults(message: str) -> list[str]:
    """Return what is wrong with a message.

    Examples
    --------
    >>> faults("Keep the headers of a message that names one twice")
    []
    >>> faults("Kept the headers.")
    ['the subject ends with a dot']
    >>> faults("Adds headers")
    ['"Adds" is not an imperative: say what the commit does, as in "Add ..."']
    """
    # What git adds below is for the writer's eyes, and its own comments are no part of the message.
    lines = [line for line in _SCISSORS.split(message)[0].splitlines() if not line.startswith("#")]
    while lines and not lines[0].strip():
        del lines[0]
    if not lines:
        return []  # git itself refuses an empty message
    subject = lines[0].rstrip()
    if _TEMPORARY.match(subject):
        return []
    found = []
    if len(subject) > CHARACTERS_MAX:
        found.append(f"the subject has {len(subject)} characters, of at most {CHARACTERS_MAX}")
    if subject.endswith("."):
        found.append("the subject ends with a dot")
    if len(lines) > 1 and lines[1].strip():
        found.append("the subject has one line; the body follows an empty one")
    word = subject.split()[0]
    if word.endswith(":"):
        found.append(f'"{word}" is a prefix: begin with the verb')
    elif not word[0].isupper():
        found.append(f'"{word}" begins with a small letter')
    elif is_other_form(word.lower()):
        found.append(f'"{word}" is not an imperative: say what the commit does, as in "Add ..."')
    return found


def is_other_form(word: str) -> bool:
    """Tell whether a word is certainly no imperative.

    Examples
    --------
    >>> [word for word in ("add", "adds", "added", "adding", "the", "pass", "bring", "need") if is_other_form(word)]
    ['adds', 'added', 'adding', 'the']
    """
    if word in _NO_VERBS:
        return True
    return word not in _VERBS and re.search(r"(?<!s)s$|ed$|ing$", word) is not None


def main(arguments: Sequence[str]) -> int:
    """Print what is wrong with the message in a file; return 1 if anything is."""
    (path,) = arguments
    found = faults(Path(path).read_text(encoding="utf-8"))
    for fault in found:
        print(f"commit message: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
