"""How an object store is reached: address, endpoint and credentials, as the providers' own tools find them.

Credentials are never part of an address.  obstore itself knows the environment (``AWS_ACCESS_KEY_ID``), web identity,
the roles of containers and instances, Google's application default and Azure's variables, and fetches anew what
expires.  Profiles and single sign-on it does not know: where they are in use botocore is asked, if it is installed.
"""

from __future__ import annotations

import logging
import os
import unicodedata
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from holdfast.errors import InvalidPipeline

SCHEMES = ("s3", "gs", "az")

_ENDPOINTS_S3 = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_ENDPOINTS = (*_ENDPOINTS_S3, "AZURE_STORAGE_ENDPOINT", "GOOGLE_BASE_URL")
_KNOWN_TO_OBSTORE = (
    *("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE"),
    *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
)
_LIFE = timedelta(minutes=5)
"""How long botocore's answer is used before it is asked again: it keeps its own, and renews it in time."""
_WHOLE = timedelta(hours=1)
"""For one whole reply, however steadily it comes."""


def open_client(address: str, *, timeout_s: float) -> Any:
    """Open the store at an address, with the credentials of now; nothing is asked of the server yet.

    Parameters
    ----------
    address : str
        ``s3://bucket/path``, ``gs://bucket/path`` or ``az://container/path``.
    timeout_s : float
        For the answer to one request, from its first byte on, and then for each further part of the answer; seconds.

    Returns
    -------
    obstore store
        One that sends each request once: who repeats it must know what became of the first.

    Raises
    ------
    InvalidPipeline
        If a library is not installed, or the address or a variable is not understood.
    """
    check_address(address)
    try:
        from obstore import store
    except ImportError as error:
        raise InvalidPipeline(
            f"{address} cannot be opened.",
            why="obstore is not installed.",
            do="pip install 'holdfast[object-store]'.",
            participant=address,
        ) from error
    options: dict[str, Any] = {"retry_config": {"max_retries": 0}}
    # NB: while a body is sent nothing is read, so both count.  Who writes much asks for more time.
    timeout = timedelta(seconds=timeout_s)
    client: dict[str, Any] = {"read_timeout": timeout, "timeout": timeout + _WHOLE}
    endpoints = [os.environ.get(name, "") for name in _ENDPOINTS]
    provider = _of_profile(address, os.environ)
    if provider is not None:
        options["credential_provider"] = provider
        if region := provider.region:
            options["region"] = region
    if urlsplit(address).scheme == "s3" and (endpoint := _endpoint_of_files(address)):
        options["endpoint"] = endpoint
        endpoints.append(endpoint)
    if any(endpoint.startswith("http://") for endpoint in endpoints):
        client["allow_http"] = True
    from_url: Any = store.from_url
    try:
        return from_url(address, client_options=client, **options)
    except Exception as error:  # obstore's own kinds, ValueError; their text may quote the value of a variable
        raise InvalidPipeline(
            f"{address} cannot be opened.",
            why=f"the library does not understand the address, or a variable of the provider ({type(error).__name__}).",
            do="write s3://bucket/path, gs://bucket/path or az://container/path, and look at the variables of the "
            "provider (AWS_*, GOOGLE_*, AZURE_*; az:// needs AZURE_STORAGE_ACCOUNT_NAME).",
            participant=address,
        ) from None


def open_multipart_client(address: str, *, timeout_s: float) -> Any:
    """Open what sends the requests of multipart uploads: obstore keeps no upload open between processes.

    Parameters
    ----------
    address : str
        ``s3://bucket/path``.
    timeout_s : float
        For the answer to one request, and for each further part of it, seconds.

    Returns
    -------
    botocore client of S3
        One that sends each request once, to the endpoint and with the region that :func:`open_client` would take.

    Raises
    ------
    InvalidPipeline
        If a library is not installed, or a variable or profile is not understood.
    """
    return _open(address, timeout_s)[1]


def _open(address: str, timeout_s: float) -> tuple[Any, Any]:
    """Return a session of botocore's, which knows the credentials, and its client."""
    check_address(address)
    try:
        import botocore.session
        from botocore import UNSIGNED
        from botocore.config import Config
    except ImportError as error:
        raise InvalidPipeline(
            f"{address} cannot be opened.",
            why="botocore is not installed.",
            do="pip install 'holdfast[object-store]'.",
            participant=address,
        ) from error
    environment = os.environ
    _say_less()
    session = botocore.session.get_session()
    session.register_component("data_loader", _describe(session))
    if _has_profile(environment):
        _check(session.get_credentials, address)
    endpoint = _endpoint(address, session)
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    is_virtual = environment.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() == "true"
    settings: dict[str, Any] = {
        "connect_timeout": min(10.0, timeout_s),
        "read_timeout": timeout_s,
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        # A server of one's own has seldom a name for each bucket.
        "s3": {"addressing_style": "path" if endpoint and not is_virtual else "auto"},
        # Checksums beyond what the signature has are not understood by every server.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    if _is_unsigned():
        settings["signature_version"] = UNSIGNED
    try:
        client = session.create_client(
            "s3",
            region_name=region or session.get_config_variable("region") or "us-east-1",
            endpoint_url=endpoint,
            config=Config(**settings),
        )
    except Exception as error:  # of botocore, ValueError; their text may quote the value of a variable
        raise InvalidPipeline(
            f"{address} cannot be opened.",
            why=f"the library does not understand a variable of the provider ({type(error).__name__}).",
            do="look at the variables AWS_*, and the files in ~/.aws.",
            participant=address,
        ) from None
    return session, client


def _endpoint(address: str, session: Any) -> str | None:
    """Return the endpoint that somebody has chosen for S3, in a variable or in the files."""
    chosen = next((value for name in _ENDPOINTS_S3 if (value := os.environ.get(name))), None)
    return chosen or _endpoint_of_files(address, session)


def _endpoint_of_files(address: str, session: Any = None) -> str | None:
    """Return the endpoint in ~/.aws where none is in the variables: botocore goes to it, and obstore must go there too.

    It is that of the profile, or before it that for S3 in the section of services that the profile names.
    """
    if any(os.environ.get(name) for name in _ENDPOINTS_S3) or not _has_files(os.environ):
        return None
    try:
        import botocore.session
    except ImportError:
        return None  # then nothing reads these files
    try:
        session = session or botocore.session.get_session()
        if session.get_config_variable("ignore_configured_endpoint_urls"):
            return None
        profile = session.get_scoped_config()
        services = session.full_config.get("services", {})[profile["services"]] if "services" in profile else {}
        found: str | None = services.get("s3", {}).get("endpoint_url") or profile.get("endpoint_url")
    except Exception as error:  # of botocore, KeyError, AttributeError; their text may quote the file
        raise InvalidPipeline(
            f"{address} cannot be opened.",
            why=f"the endpoint of the profile cannot be read ({type(error).__name__}).",
            do="correct endpoint_url and services of the profile in ~/.aws/config, or set AWS_ENDPOINT_URL.",
            participant=address,
        ) from None
    return found


def _is_unsigned() -> bool:
    return os.environ.get("AWS_SKIP_SIGNATURE", "").lower() == "true"


def arrow_file_system(address: str) -> tuple[Any, str]:
    """Return what Arrow reads files of S3 with, and the place of an address in it.

    The credentials are those of now: they must outlive what is read with them.
    """
    from pyarrow import fs

    session, client = _open(address, timeout_s=30.0)
    parts = urlsplit(address)
    options: dict[str, Any] = {"region": client.meta.region_name}
    if _endpoint(address, session):
        scheme, _, host = client.meta.endpoint_url.partition("://")
        options |= {"endpoint_override": host, "scheme": scheme}
    found = session.get_credentials()
    if found is None or _is_unsigned():
        options["anonymous"] = True
    else:
        now = found.get_frozen_credentials()
        options |= {"access_key": now.access_key, "secret_key": now.secret_key, "session_token": now.token}
    return fs.S3FileSystem(**options), f"{parts.netloc}{parts.path}".rstrip("/")


def check_address(address: str) -> None:
    """Raise :class:`InvalidPipeline` unless this is the address of a place in an object store, without a secret.

    And unless it is the same place to each library: one decodes and shortens a path as that of an address in the web,
    another takes it as it is.  Nothing of the address is shown, for what is wrong in it may be a password.
    """
    scheme, separator, _ = address.partition("://")
    shown = f" that begins with {scheme}://" if separator and scheme.isalnum() else ""
    if why := _fault(address):
        raise InvalidPipeline(
            f"An address{shown} is not understood.",
            why=why,
            do="write s3://bucket/path, gs://bucket/path or az://container/path, the path with plain names between its "
            "slashes; credentials come from the variables, files and roles that the provider's own tools use.",
        )


def _fault(address: str) -> str:
    """Return what is wrong with an address; empty where nothing is."""
    try:
        parts = urlsplit(address)
        is_right = parts.scheme in SCHEMES and bool(parts.netloc) and not {"@", ":"} & set(parts.netloc)
    except ValueError:
        is_right = False
    if not is_right or {"?", "#"} & set(address):
        return "it is the scheme, a bucket and a path; credentials are never part of it."
    if {"%", "\\"} & set(address) or any(unicodedata.category(char) == "Cc" for char in address):
        return (
            "it contains a percent sign, a backslash or a control character: the libraries that read and write there "
            "would not agree on the place (one takes %20 for a space, and another as it is)."
        )
    if address.removesuffix("/") != address.removesuffix("/").strip():
        return "there is a space before or behind it, which not every library takes for a part of it."
    segments = parts.path.removeprefix("/").removesuffix("/").split("/")
    if parts.path not in ("", "/") and {"", ".", ".."} & set(segments):
        return (
            "a part of its path is empty (//), . or ..: in an object store these are names like others, and not every "
            "library keeps them."
        )
    return ""


def _say_less() -> None:
    """Keep botocore from telling each time where it has found credentials, unless somebody has asked it to."""
    logger = logging.getLogger("botocore.credentials")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)


_descriptions: list[Any] = []


def _describe(session: Any) -> Any:
    """Return what reads botocore's description of S3, once for the process: 0.1 s."""
    if not _descriptions:
        _descriptions.append(session.get_component("data_loader"))
    return _descriptions[0]


class _BotocoreCredentials:
    """Credentials of a profile, as obstore asks for them: whenever the last ones are a few minutes old."""

    def __init__(self, session: Any, credentials: Any) -> None:
        self._credentials = credentials
        self.region: str | None = session.get_config_variable("region")

    def __call__(self) -> dict[str, Any]:
        now = self._credentials.get_frozen_credentials()
        return {
            "access_key_id": now.access_key,
            "secret_access_key": now.secret_key,
            "token": now.token,
            "expires_at": datetime.now(UTC) + _LIFE,
        }


def _of_profile(address: str, environment: Mapping[str, str]) -> _BotocoreCredentials | None:
    """Return the credentials of a profile, where one is in use; None where obstore finds its own."""
    if urlsplit(address).scheme != "s3" or not _has_profile(environment):
        return None
    try:
        import botocore.session
    except ImportError as error:
        raise InvalidPipeline(
            f"{address} cannot be opened.",
            why="the credentials are in a profile (AWS_PROFILE, ~/.aws); botocore, which reads it, is not installed.",
            do="pip install botocore, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
            participant=address,
        ) from error
    _say_less()
    session = botocore.session.get_session()
    return _BotocoreCredentials(session, _check(session.get_credentials, address))


def _has_profile(environment: Mapping[str, str]) -> bool:
    if environment.get("AWS_PROFILE"):
        return True
    if any(environment.get(name) for name in _KNOWN_TO_OBSTORE):
        return False
    return _has_files(environment)


def _has_files(environment: Mapping[str, str]) -> bool:
    files = (
        environment.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
        environment.get("AWS_CONFIG_FILE", "~/.aws/config"),
    )
    return any(Path(file).expanduser().is_file() for file in files)


def _check(found: Callable[[], Any], address: str) -> Any:
    """Return credentials; raise where the profile does not exist or gives none."""
    reason = "the profile gives no credentials"
    try:
        credentials = found()
    except Exception as error:  # of botocore; its text may quote the file
        credentials, reason = None, f"the profile cannot be read ({type(error).__name__})"
    if credentials is None:
        raise InvalidPipeline(
            f"{address} cannot be opened.",
            why=f"{reason}.",
            do="correct AWS_PROFILE and the files in ~/.aws (aws configure, aws sso login), or set AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY.",
            participant=address,
        )
    return credentials
