"""The settings of a process for ``inspect --config``: each variable, its value, and where the value came from."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from holdfast.config import OTHER_VARIABLES, SECRET_VARIABLES, Settings, mistaken_variables, variable
from holdfast.masking import COVER, masked

Whence = Literal["default", "environment", "argument"]


@dataclass(frozen=True)
class SettingShown:
    """One variable.

    Parameters
    ----------
    variable : str
        Its name.
    value : str
        What counts, secrets covered; empty for a variable that is not set and has no default.
    whence : str
        ``"default"``, ``"environment"``, or ``"argument"``: of ``start``, of ``Settings``, or of the command line.
    is_setting : bool
        False for what only tests, demo and benchmark read.
    """

    variable: str
    value: str
    whence: Whence
    is_setting: bool = True

    @property
    def is_given(self) -> bool:
        """Whether the value was chosen by the user."""
        return self.whence != "default"


@dataclass(frozen=True)
class Configuration:
    """All variables, and what is wrong with the others that are set."""

    settings: Sequence[SettingShown]
    warnings: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON value."""
        return {"settings": [asdict(one) for one in self.settings], "warnings": list(self.warnings)}


def configuration(settings: Settings, environ: Mapping[str, str] | None = None) -> Configuration:
    """Return the configuration of this process.

    Parameters
    ----------
    settings : Settings
        Checked.
    environ : mapping of str to str, optional
        Default: the environment.

    Examples
    --------
    >>> shown = configuration(Settings(commit_queue=7), {}).settings
    >>> [(one.variable, one.value) for one in shown if one.whence == "argument"]
    [('HOLDFAST_COMMIT_QUEUE', '7')]
    """
    given = {name.upper(): value for name, value in (os.environ if environ is None else environ).items()}
    shown = [_show(settings, name, given.get(variable(name), "")) for name in Settings.model_fields]
    others = [
        SettingShown(name, COVER if name in SECRET_VARIABLES else masked(given[name]), "environment", is_setting=False)
        for name in OTHER_VARIABLES
        if given.get(name)
    ]
    return Configuration([*shown, *others], mistaken_variables(given))


def _show(settings: Settings, name: str, in_environment: str) -> SettingShown:
    value = getattr(settings, name)
    whence: Whence = "argument"
    if in_environment and getattr(settings, name) == getattr(Settings.model_validate({name: in_environment}), name):
        whence = "environment"
    elif value == Settings.model_fields[name].default:
        whence = "default"
    return SettingShown(variable(name), masked(_text(value)), whence)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
