"""What an object store answered: from the errors of obstore, which give a status only in their text, and of botocore.

Nothing of that text reaches a message but the store's own code and sentence: addresses in it may be signed.

Requests to an object store: sent again with bounds until they are answered, whatever library sends them.

A library sends each request once.  Who repeats it must know what became of the first: what a failure tells is
:class:`~holdfast.store.objects.errors.StoreAnswer`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from holdfast.errors import HoldfastError, InDoubt, InvalidPipeline, Unavailable
from holdfast.retry import RetryPolicy


class StoreAnswer(Enum):
    """What a failed request tells, by the reaction it asks for."""

    ABSENT = "there is no such object"
    NO_BUCKET = "there is no such bucket"
    TAKEN = "an object is there, or another request for its key is under way"
    EXPIRED = "the credentials have expired"
    FORBIDDEN = "the credentials are refused"
    NO_CREDENTIALS = "no credentials were found: the request was not sent"
    REFUSED = "the request is refused: asking again changes nothing"
    UNREADABLE = "a key in the listing cannot be read"
    NOT_DONE = "nothing was done: asked too often, by a clock that is wrong, or never reached"
    UNKNOWN = "no answer, or one that does not tell whether it was done"


@dataclass(frozen=True)
class FailedRequest:
    """A failed request.

    Parameters
    ----------
    answer : StoreAnswer
        What it tells.
    why : str
        For messages, without a full stop; no secret is in it.
    """

    answer: StoreAnswer
    why: str


_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_SENTENCE = re.compile(r"<Message>([^<\n]{1,300})")  # Azure's goes on with numbers of the request

_CODE_OF_KEY = re.compile(r"request failed for key .*\(code: (\w+)\)$", re.MULTILINE)
_SENTENCE_OF_KEY = re.compile(r'^ *message: "([^"\\\n]{1,300})', re.MULTILINE)
"""Of one key that was not deleted, inside a reply with 200: object_store's own words."""

_REPLY_WITH_WORDS = "Server returned error response: "
_NOT_DELETED = re.compile(r"<Error[\s/>]")

_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
_FORBIDDEN = {"AccessDenied"}
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}
_NOT_DONE = {
    *("SlowDown", "RequestLimitExceeded", "ServerBusy", "TooManyRequests", "OperationAborted"),
    "RequestTimeTooSkewed",  # of a machine that woke up: its clock is set right soon
}
_NOT_CONNECTED = ("kind: Connect", "ConnectError(", "tcp connect error", "dns error")
_WRONG_REGION = "incorrectly configured region"
_OF_CREDENTIALS = ("169.254.169.254", "metadata.google.internal", "token request", "External AWS credential provider")
"""In errors from before the request: where variables and files give nothing, the machine's role is asked."""


def failure_of(error: Exception) -> FailedRequest:
    """Return what a failed request tells.

    Parameters
    ----------
    error : Exception
        One of :func:`of_server`.

    Notes
    -----
    503 counts as not done with the code of a store that throttles (``SlowDown``).  Without one it may be of a proxy,
    which answers so as well after the store has got the request; any other 5xx, too, may come after the write.  Whoever
    writes if absent asks the store in either case.
    """
    text = str(error)
    if type(error).__name__ == "InvalidPathError":
        return FailedRequest(StoreAnswer.UNREADABLE, _UNREADABLE)
    if any(words in text for words in _OF_CREDENTIALS):
        return FailedRequest(StoreAnswer.NO_CREDENTIALS, _NO_CREDENTIALS)
    status, code = _find(_STATUS, text), _find(_CODE, text) or _find(_CODE_OF_KEY, text)
    return FailedRequest(_answer(type(error).__name__, text, status, code), _why(text, status, code))


@cache
def of_server() -> tuple[type[Exception], ...]:
    """Return the kinds of errors by which obstore tells what became of a request; another kind is a defect here."""
    from obstore.exceptions import BaseError  # not above: most checkpoints are directories

    return BaseError, FileNotFoundError


def is_deleted(error: Exception) -> bool:
    """Return whether this is the reply to a delete of several keys that was done, and an error by mistake.

    object_store takes a reply for a failure that has the words ``InternalError`` or ``SlowDown`` in it: S3 may say so
    with 200.  It looks for them in the keys that were deleted, too.
    """
    text = str(error)
    return _REPLY_WITH_WORDS in text and "<DeleteResult" in text and not _NOT_DELETED.search(text)


_NEVER_REACHED = {"EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError", "SSLError"}
_WITHOUT_CREDENTIALS = {
    *("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "TokenRetrievalError"),
    *("SSOTokenLoadError", "UnauthorizedSSOTokenError", "MetadataRetrievalError"),
}


def failure_of_multipart(error: Exception) -> FailedRequest:
    """Return what a failed request of a multipart upload tells.

    Parameters
    ----------
    error : Exception
        One of :func:`of_multipart_server`.

    Notes
    -----
    409 says that another request for the upload is under way.
    """
    from botocore.exceptions import ClientError  # not above: most checkpoints are directories

    kind = type(error).__name__
    if not isinstance(error, ClientError):
        if kind in _WITHOUT_CREDENTIALS:
            return FailedRequest(StoreAnswer.NO_CREDENTIALS, _NO_CREDENTIALS)
        if kind in _NEVER_REACHED:
            return FailedRequest(StoreAnswer.NOT_DONE, "nothing answers there")
        return FailedRequest(StoreAnswer.UNKNOWN, "no answer came in time, or the connection broke")
    reply = error.response
    status = str(reply.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
    code, sentence = str(reply["Error"].get("Code", "")), str(reply["Error"].get("Message", ""))
    answer = _answer("NotFoundError" if status == "404" else "", "", status, code)
    said = code if code.isalnum() and not code.isdecimal() else ""
    return FailedRequest(
        StoreAnswer.NOT_DONE if answer is StoreAnswer.TAKEN else answer, _said(status, said, sentence[:300])
    )


@cache
def of_multipart_server() -> tuple[type[Exception], ...]:
    """Return the kinds of errors by which botocore tells what became of a request."""
    from botocore.exceptions import BotoCoreError, ClientError  # not above: most checkpoints are directories

    return BotoCoreError, ClientError


def _answer(kind: str, text: str, status: str, code: str) -> StoreAnswer:
    by_code = (
        (_EXPIRED, StoreAnswer.EXPIRED),
        (_FORBIDDEN, StoreAnswer.FORBIDDEN),
        (_NO_BUCKET, StoreAnswer.NO_BUCKET),
        (_NOT_DONE, StoreAnswer.NOT_DONE),
    )
    for codes, answer in by_code:
        if code in codes:
            return answer
    if kind in ("AlreadyExistsError", "PreconditionError") or status in ("409", "412"):
        return StoreAnswer.TAKEN
    if kind in ("FileNotFoundError", "NotFoundError"):
        return StoreAnswer.ABSENT
    if kind in ("PermissionDeniedError", "UnauthenticatedError") or status in ("401", "403"):
        return StoreAnswer.FORBIDDEN
    if status == "429" or (not status and any(words in text for words in _NOT_CONNECTED)):
        return StoreAnswer.NOT_DONE
    if (status.startswith(("3", "4")) and status != "408") or status == "501" or _WRONG_REGION in text:
        return StoreAnswer.REFUSED
    return StoreAnswer.UNKNOWN


_NO_CREDENTIALS = (
    "no credentials are in the variables of the provider or in its files, or they cannot be read, and this machine has "
    "no role that gives any"
)


_UNREADABLE = (
    "the key of an object below the address has an empty part (//), a part . or .., or a control character; it cannot "
    "be read"
)


def _why(text: str, status: str, code: str) -> str:
    if status or code:
        return _said(status, code, _find(_SENTENCE, text) or _find(_SENTENCE_OF_KEY, text))
    if _WRONG_REGION in text:
        return "the bucket is in another region"
    if any(words in text for words in _NOT_CONNECTED):
        return "nothing answers there"
    return "no answer came in time, or the connection broke"


def _said(status: str, code: str, sentence: str) -> str:
    sentence = sentence.strip().rstrip(".")
    return f"the store answered {' '.join(part for part in (status, code) if part)}" + (
        f" ({sentence})" if sentence else ""
    )


def _find(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""


def as_error(failure: FailedRequest, doing: str, address: str) -> HoldfastError:
    """Return the error for a request that changed nothing: ``InvalidPipeline`` where a person must act."""
    what, why = f"{doing[:1].upper()}{doing[1:]} failed.", f"{failure.why}."
    if failure.answer in _CURES:
        return InvalidPipeline(what, why=why, do=f"{_CURES[failure.answer]}: nothing was lost.", participant=address)
    return Unavailable(
        what,
        why=why,
        do="check that the store answers (its endpoint, the network), then start again: nothing was lost.",
        participant=address,
    )


_CURES = {
    StoreAnswer.NO_BUCKET: "create the bucket, or correct its name or the endpoint, then start again",
    StoreAnswer.EXPIRED: "renew the credentials (aws sso login, or new values of the variables), then start again",
    StoreAnswer.NO_CREDENTIALS: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE (s3://), "
    "GOOGLE_APPLICATION_CREDENTIALS (gs://), or AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (az://), then "
    "start again",
    StoreAnswer.FORBIDDEN: "give these credentials permission to read, write, list and delete there, then start again",
    StoreAnswer.UNREADABLE: "move such objects away (aws s3 ls --recursive shows those of S3), or choose another path, "
    "then start again",
    StoreAnswer.REFUSED: "correct the bucket's name, its region (AWS_REGION) or the endpoint, then start again",
}


T = TypeVar("T")

_AGAIN = {StoreAnswer.NOT_DONE, StoreAnswer.UNKNOWN, StoreAnswer.TAKEN, StoreAnswer.NO_CREDENTIALS}
"""A role may not answer for a moment, too; and a plain put may meet another request for its key."""
_RENEWED = {StoreAnswer.EXPIRED, StoreAnswer.FORBIDDEN, StoreAnswer.NO_CREDENTIALS}
"""Answers after which the credentials are looked up again, for each call once: they may have been replaced."""

SLOW_BYTES_S = 256 * 2**10
"""Bytes that a slow line takes in a second: an object has the time that it needs there."""

_UNANSWERED = RetryPolicy(4, first_s=0.2, cap_s=5.0, jitter=1.0)
_ANSWERED = replace(_UNANSWERED, attempts=12)


@dataclass(frozen=True)
class RequestLimits:
    """How long the store itself tries; its callers try again for longer.

    Parameters
    ----------
    unanswered : RetryPolicy
        Of a call to a store that has not answered yet: its address may be wrong.
    answered : RetryPolicy
        Of a call to one that has.  Not every caller in a run tries again.
    timeout_s : float
        For the answer to one request, and then for each further part of the answer.
    """

    unanswered: RetryPolicy = _UNANSWERED
    answered: RetryPolicy = _ANSWERED
    timeout_s: float = 30.0

    def body_timeout_s(self, size_bytes: int) -> float:
        """Return the timeout for a request with a body, which counts from its first byte; in seconds.

        It is doubled until a slow line has sent the body: few sizes need a client of their own.
        """
        timeout_s = self.timeout_s
        while timeout_s * SLOW_BYTES_S < size_bytes:
            timeout_s *= 2
        return timeout_s


class Refusal(Exception):
    """A request that failed, with what it tells."""

    def __init__(self, failure: FailedRequest) -> None:
        super().__init__(failure.why)
        self.failure = failure


class Requests:
    """A library's clients of one address, opened in each process, and how often they are asked.

    Parameters
    ----------
    address : str
        Where the objects are.
    limits : RequestLimits
        How long it tries.
    connect : callable
        Opens the library's client for a timeout in seconds, with the credentials of now.
    kinds : callable
        Returns the kinds of errors by which the library tells what became of a request; another kind is a defect here.
    failure_of : callable
        What such an error tells.
    """

    def __init__(
        self,
        address: str,
        limits: RequestLimits,
        connect: Callable[[float], Any],
        kinds: Callable[[], tuple[type[Exception], ...]],
        failure_of: Callable[[Exception], FailedRequest],
    ) -> None:
        self.address = address
        self._limits = limits
        self._connect = connect
        self._kinds = kinds
        self._failure_of = failure_of
        self._clients: dict[float, Any] = {}
        """By their timeout."""
        self._owner = 0
        self._was_answered = False

    def open(self, *, size_bytes: int = 0, anew: bool = False) -> Any:
        """Return the client of this process for a body of a size; ``anew``: with the credentials of now."""
        timeout_s = self._limits.body_timeout_s(size_bytes)
        if anew or self._owner != os.getpid():
            self._clients, self._owner = {timeout_s: self._connect(timeout_s)}, os.getpid()
        clients = self._clients
        if timeout_s not in clients:
            clients[timeout_s] = self._connect(timeout_s)
        return clients[timeout_s]

    def call(self, request: Callable[[Any], T], doing: str, *, is_write: bool = False, size_bytes: int = 0) -> T:
        """Send a request until it is answered, with bounds; raise what the last answer asks for.

        ``size_bytes`` is what its body has, as far as that matters: a large one is given more time.
        """
        self.open(size_bytes=size_bytes)  # before its library is asked for kinds of errors
        is_renewed = is_unknown = False
        failed: tuple[type[Exception], ...] = (Refusal, *self._kinds())

        def once() -> T:
            nonlocal is_renewed, is_unknown
            try:
                try:
                    return request(self.open(size_bytes=size_bytes))
                except failed as error:
                    answer = self._failure(error).answer
                    if answer not in _RENEWED or (is_renewed and answer is not StoreAnswer.EXPIRED):
                        raise
                    is_renewed = True
                    return request(self.open(size_bytes=size_bytes, anew=True))
            except failed as error:
                failure = self._failure(error)
                is_unknown = is_unknown or failure.answer is StoreAnswer.UNKNOWN
                raise Refusal(failure) from error

        policy = self._limits.answered if self._was_answered else self._limits.unanswered
        try:
            result = policy.call(once, self._is_passing)
        except Refusal as refusal:
            found = as_error(self._in_context(refusal.failure), doing, self.address)
            raise (in_doubt(found) if is_write and is_unknown else found) from refusal
        self._was_answered = True
        return result

    def _is_passing(self, error: Exception) -> bool:
        """Return whether to ask again.  Who renews credentials that have expired in a run may take a moment, too."""
        passing = {*_AGAIN, StoreAnswer.EXPIRED} if self._was_answered else _AGAIN
        return isinstance(error, Refusal) and error.failure.answer in passing

    def _in_context(self, failure: FailedRequest) -> FailedRequest:
        """Take missing credentials for a failure that passes where there were some before: a role is away."""
        is_passing = failure.answer is StoreAnswer.NO_CREDENTIALS and self._was_answered
        return FailedRequest(StoreAnswer.NOT_DONE, failure.why) if is_passing else failure

    def _failure(self, error: Exception) -> FailedRequest:
        return error.failure if isinstance(error, Refusal) else self._failure_of(error)


def refused_answer(error: HoldfastError) -> StoreAnswer | None:
    """Return what the store answered to the request that an error tells of; None where it tells of none."""
    return error.__cause__.failure.answer if isinstance(error.__cause__, Refusal) else None


def in_doubt(error: HoldfastError) -> InDoubt:
    """Return the error of a request of which it is unknown whether it was done."""
    return InDoubt(
        error.what,
        why=f"whether it was done is unknown: {error.why}",
        do="check that the store answers, then start again: what is there is then read.",
        participant=error.participant,
    )
