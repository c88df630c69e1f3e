"""Options of Spark's readers in a form that may be shown: known harmless ones as they are, of all others a keyed hash.

What is a secret to a connector has no form that could be recognised (``auth``, ``headers``, a connection string),
so the list is of what is shown.  Design: 0004, section 8.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Mapping

from holdfast.errors import InvalidPipeline
from holdfast.masking import COVER, masked

KEY_VARIABLE = "HOLDFAST_SECRET_KEY"
"""With the key in it a change of a hidden option is detected; without, only that the option is set."""

KEY_LENGTH_MIN = 32

_HARMLESS = frozenset(
    re.findall(
        r"\S+",
        """
        kafka.bootstrap.servers subscribe subscribepattern assign startingoffsets startingtimestamp endingoffsets
        startingoffsetsbytimestamp startingoffsetsbytimestampstrategy failondataloss groupidprefix kafka.group.id
        kafka.security.protocol kafka.sasl.mechanism kafka.client.id kafka.isolation.level includeheaders
        minpartitions maxoffsetspertrigger minoffsetspertrigger maxtriggerdelay maxrecordsperpartition
        kafkaconsumer.polltimeoutms fetchoffset.numretries fetchoffset.retryintervalms path maxfilespertrigger
        maxbytespertrigger maxfileage latestfirst maxcachedfiles discardcachedinputratio filenameonly cleansource
        sourcearchivedir pathglobfilter recursivefilelookup modifiedbefore modifiedafter basepath
        ignorecorruptfiles ignoremissingfiles mergeschema header sep delimiter quote escape comment encoding
        charset multiline linesep mode inferschema enforceschema dateformat timestampformat timestampntzformat
        timezone locale nullvalue nanvalue emptyvalue ignoreleadingwhitespace ignoretrailingwhitespace maxcolumns
        maxcharspercolumn primitivesasstring prefersdecimal allowcomments allowsinglequotes
        columnnameofcorruptrecord samplingratio wholetext rowtag compression startingversion endingversion
        ignoredeletes ignorechanges skipchangecommits readchangefeed witheventtimeorder table database collection
        host port includetimestamp rowspersecond rampuptime numpartitions rowsperbatch advancemillisperbatch
        starttimestamp streamname region initialposition projectid topicid subscriptionid topic topics
        """,
    )
)
"""Of Kafka, files, tables, Spark's sources for tests, streams of clouds; in small letters, as Spark compares them."""

# A login before a host, the parameter of a URL, a further part of a connection string.
_SUSPECT = re.compile(r"@|[?&;]\s*[\w.-]+=")
_HIDDEN = re.compile(rf"{re.escape(COVER)}(?:#(\w+):\w+)?")


def shown(options: Mapping[str, str]) -> dict[str, str]:
    """Return options for display and fingerprint.

    Examples
    --------
    >>> shown({"subscribe": "clicks", "auth": "hunter2", "path": "https://host/data?sig=hunter2"})
    {'subscribe': 'clicks', 'auth': '***', 'path': '***'}
    """
    return {name: value if _is_harmless(name, value) else _hidden(name, value) for name, value in options.items()}


def is_same(before: str, after: str) -> bool:
    """Return whether two shown values may be of one option: hidden under another key, or none, it is unknown."""
    if before == after:
        return True
    old, new = _HIDDEN.fullmatch(before), _HIDDEN.fullmatch(after)
    return old is not None and new is not None and (old[1] is None or new[1] is None or old[1] != new[1])


def as_of_now(recorded: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return recorded options, replaced by the present ones where they are not known to differ."""
    before = shown(recorded)
    return {name: now[name] if name in now and is_same(value, now[name]) else value for name, value in before.items()}


def _is_harmless(name: str, value: str) -> bool:
    return name.lower() in _HARMLESS and not _SUSPECT.search(value) and masked(value) == value


def _hidden(name: str, value: str) -> str:
    if COVER in value:  # recorded, by this version or by an older one that covered parts
        return value if _HIDDEN.fullmatch(value) else COVER
    key = _key()
    if not key:
        return COVER
    named = f"{name.lower()}\0{value}".encode()
    return f"{COVER}#{_digest(key, b'key')[:6]}:{_digest(key, b'option' + named)[:16]}"


def _digest(key: bytes, text: bytes) -> str:
    return hmac.new(key, text, hashlib.sha256).hexdigest()


def _key() -> bytes:
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if key and len(key) < KEY_LENGTH_MIN:
        raise InvalidPipeline(
            f"{KEY_VARIABLE} is too short.",
            why=f"with fewer than {KEY_LENGTH_MIN} characters it could be guessed from a copy of a checkpoint, and "
            "then the options that are hashed with it.",
            do=f"make one, and give it to every machine that runs the pipeline: export {KEY_VARIABLE}=$(openssl rand "
            "-hex 32); or leave it out: a change of a hidden option is then not detected.",
        )
    return key.encode()
