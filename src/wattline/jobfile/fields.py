"""Types of the fields of a job file. Validators and the JSON schema state the same limits."""

from __future__ import annotations

import signal
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from wattline.jobfile.template import COMMAND, DOLLAR, NAME, check_command, check_dollars, check_word
from wattline.units import parse_seconds

DAY_S = 86400.0
STOP_SIGNALS = tuple(
    sorted(name for name in signal.Signals.__members__ if name not in ("SIGKILL", "SIGSTOP"))
)
RESERVED_ENV = (  # set for each job by the service
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID"),
    "CUDA_VISIBLE_DEVICES",
)

_CONTROL = r"\x00-\x1f\x7f-\x9f"
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,6})?"
_PARTS = rf"(?:{_NUMBER}(?:ms|min|[smhdw]))+"
_CLOCK = r"[0-9]{1,4}-[0-9]{1,4}(?::[0-9]{2}){0,2}|[0-9]{1,6}(?::[0-9]{2}){1,2}"
_NOT_ZERO = {"allOf": [{"pattern": "[1-9]"}]}

_UP_TO_A_DAY = "|".join(
    (
        r"(?:[0-9]{1,4}|[1-7][0-9]{4}|8[0-5][0-9]{3}|86[0-3][0-9]{2}|86400)s?",
        r"[0-9]{1,3}\.[0-9]{1,6}(?:ms|s|m|min)?|[0-9]{1,7}ms|(?:[0-9]|1[0-9]|2[0-3])(?:\.[0-9]{1,6})?h|24h|1d",
        r"(?:[0-9]{1,3}|1[0-3][0-9]{2}|14[0-3][0-9]|1440)m(?:in)?",
        r"[0-9]{1,3}m[0-9]{1,3}s|(?:[0-9]|1[0-9]|2[0-1])h[0-9]{1,2}m(?:[0-9]{1,2}s)?",
        r"[0-9]{1,3}:[0-5][0-9]|(?:[01]?[0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]",
    )
)
_DAY = "|".join(  # of this century, in which every fourth year is a leap year
    (
        r"20[0-9]{2}-(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
        r"20[0-9]{2}-(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
        r"20[0-9]{2}-02-(?:0[1-9]|1[0-9]|2[0-8])",
        r"20(?:[02468][048]|[13579][26])-02-29",
    )
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_INSTANT = rf"^(?:{_DAY})[T ]{_TIME}(?::[0-5][0-9](?:\.[0-9]{{1,6}})?)?(?:Z|[+-]{_TIME})$"


def as_tuple(value: object) -> object:
    """Return a list as a tuple, and any other value as it is."""
    return tuple(value) if isinstance(value, list) else value


def _as_words(value: object) -> object:
    if isinstance(value, list) and value[:1] == [""]:
        raise ValueError("begins with an empty word")
    return as_tuple(value)


def _as_whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _refuse_zero(value: object) -> object:
    if isinstance(value, str) and "0" in value and not any(digit in value for digit in "123456789"):
        raise ValueError("is zero")
    return value


def _refuse_above_a_day(value: object) -> object:
    if isinstance(value, str):
        try:
            duration_s = parse_seconds(value)
        except ValueError:
            return value
        if duration_s > DAY_S:
            raise ValueError("is longer than a day")
    return value


def _as_instant(value: object) -> object:
    if isinstance(value, datetime):
        value = value.isoformat()
    if isinstance(value, str):
        try:
            parsed = datetime.fromisoformat(value)
        except ValueError:
            return value
        if len(value) <= 10:
            raise ValueError("is a day without a time")
        if parsed.tzinfo is None:
            raise ValueError("has no time zone")
    return value


def _check_command(value: object) -> object:
    return check_command(value) if isinstance(value, str) else value


def _check_template(value: object) -> object:
    return check_dollars(value) if isinstance(value, str) else value


def _check_word(value: object) -> object:
    return check_word(value) if isinstance(value, str) else value


def _false_as_off(value: object) -> object:
    return "off" if value is False else value


def _check_env_name(value: object) -> object:
    if isinstance(value, str) and (value.startswith("WATTLINE_") or value in RESERVED_ENV):
        raise ValueError("is set by Wattline itself")
    return value


def _check_stop_signal(name: str) -> str:
    if name not in STOP_SIGNALS:
        raise ValueError("is not a signal that a program can handle")
    return name


def _text(pattern: str, max_length: int, min_length: int = 0, **schema: Any) -> Any:
    return Field(
        pattern=pattern, min_length=min_length or None, max_length=max_length, json_schema_extra=schema
    )


def _keys(pattern: str, **more: Any) -> Any:
    """Return a function that puts the rule for keys into a JSON schema."""

    def rewrite(schema: dict[str, Any]) -> None:
        # Pydantic writes patternProperties, which would allow any value under keys of another pattern.
        for values in schema.pop("patternProperties", {}).values():
            schema["additionalProperties"] = values
        schema["propertyNames"] = {"pattern": pattern, **more}

    return rewrite


Auto = Literal["auto"]

Label = Annotated[str, _text(rf"^(?:[^${_CONTROL}]|{DOLLAR})*$", 200), BeforeValidator(_check_template)]
Line = Annotated[str, _text(rf"^[^{_CONTROL}]*$", 200)]
Team = Annotated[str, _text(rf"^[^*:{_CONTROL}]*$", 200)]  # budgets name teams as TEAM:, and * is all teams
WebhookUrl = Annotated[str, _text(rf"^[^\s{_CONTROL}]*$", 2000)]
Image = Annotated[str, _text(rf"^[^-\s{_CONTROL}][^\s{_CONTROL}]*$", 1000)]
Mount = Annotated[str, _text(rf"^/[^:,{_CONTROL}]*(?::/[^:,{_CONTROL}]*)?(?::r[ow])?$", 4096)]
Mounts = Annotated[tuple[Mount, ...], Field(max_length=100), BeforeValidator(as_tuple)]
Folder = Annotated[str, _text(rf"^/[^{_CONTROL}]*$", 4096)]
FolderTemplate = Annotated[
    str, _text(rf"^(?:[^${_CONTROL}]|{DOLLAR})+$", 4096, min_length=1), BeforeValidator(_check_template)
]
Kind = Annotated[str, _text(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", 64)]

Command = Annotated[str, _text(COMMAND, 32_768), BeforeValidator(_check_command)]
_WORD = rf"^(?:[^$\x00]|{DOLLAR}|\$[^${{\x00])*\$?$"
Word = Annotated[str, _text(_WORD, 32_768), BeforeValidator(_check_word)]
_FIRST = {"type": "string", "pattern": _WORD, "minLength": 1, "maxLength": 32_768}
Words = Annotated[
    tuple[Word, ...],
    Field(min_length=1, max_length=1000, json_schema_extra={"prefixItems": [_FIRST]}),
    BeforeValidator(_as_words),
]

EnvName = Annotated[str, _text(r"^[A-Za-z_][A-Za-z0-9_]*$", 200), BeforeValidator(_check_env_name)]
Number = Annotated[float, Field(ge=-1e300, le=1e300)]
Retries = Annotated[int, Field(ge=0, le=100), BeforeValidator(_as_whole)]
Integer = Annotated[int, Field(ge=-(10**18), le=10**18)]
Env = Annotated[
    dict[EnvName, Word | bool | Integer | Number],
    Field(
        max_length=1000,
        json_schema_extra=_keys(
            r"^[A-Za-z_][A-Za-z0-9_]*$",
            maxLength=200,
            **{"not": {"anyOf": [{"pattern": "^WATTLINE_"}, {"enum": list(RESERVED_ENV)}]}},
        ),
    ),
]

MatrixText = Annotated[str, _text(rf"^(?:[^${_CONTROL}]|{DOLLAR})*$", 1000), BeforeValidator(_check_template)]
MatrixList = Annotated[
    tuple[MatrixText | bool | Integer | Number, ...],
    Field(min_length=1, max_length=10_000),
    BeforeValidator(as_tuple),
]
MatrixRange = Annotated[str, _text(r"^-?[0-9]{1,9}\.\.-?[0-9]{1,9}$", 24)]
Matrix = Annotated[
    dict[Annotated[str, _text(rf"^{NAME}$", 64)], MatrixRange | MatrixList],
    Field(max_length=32, json_schema_extra=_keys(rf"^{NAME}$")),
]

JobNumber = Annotated[int, Field(ge=1, le=10**12 - 1), BeforeValidator(_as_whole)]
DependencyText = Annotated[str, _text(rf"^(?:sweep:)?[^:{_CONTROL}]+(?::(?:success|end))?$", 220)]
SweepNumber = Annotated[str, _text(r"^[0-9]{1,12}$", 12)]
DependencyName = Annotated[str, _text(rf"^[^{_CONTROL}]+$", 200)]

Count = Annotated[int, Field(ge=1, le=10**9), BeforeValidator(_as_whole)]
GpuCount = Annotated[int, Field(ge=1, le=99_999), BeforeValidator(_as_whole)]
GpuRange = Annotated[str, _text(r"^[1-9][0-9]{0,4}(?:\.\.(?:[1-9][0-9]{0,4})?)?$", 12)]
Kinds = Annotated[tuple[Kind, ...], Field(max_length=32), BeforeValidator(as_tuple)]
Cpus = Annotated[float, Field(gt=0, le=10_000)]
Gib = Annotated[float, Field(gt=0, le=1e9)]
GibText = Annotated[
    str, _text(rf"^{_NUMBER}[KMGTkmgt]?i?[Bb]?$", 24, **_NOT_ZERO), BeforeValidator(_refuse_zero)
]
Seconds = Annotated[float, Field(gt=0, le=1e12)]
Duration = Annotated[
    str, _text(rf"^(?:{_NUMBER}|{_PARTS}|{_CLOCK})$", 64, **_NOT_ZERO), BeforeValidator(_refuse_zero)
]
Grace = Annotated[float, Field(ge=0, le=DAY_S)]
GraceText = Annotated[str, _text(rf"^(?:{_UP_TO_A_DAY})$", 24), BeforeValidator(_refuse_above_a_day)]

Ratio = Annotated[float, Field(ge=1, le=1000)]
Percent = Annotated[str, _text(r"^[0-9]{1,4}(?:\.[0-9]{1,6})?%$", 16)]
Watts = Annotated[float, Field(gt=0, le=1e6)]
WattsText = Annotated[
    str, _text(r"^[0-9]{1,6}(?:\.[0-9]{1,6})?(?:k?W)?$", 16, **_NOT_ZERO), BeforeValidator(_refuse_zero)
]
Joules = Annotated[float, Field(gt=0, le=1e18)]
JoulesText = Annotated[
    str, _text(rf"^{_NUMBER} ?(?:J|kJ|MJ|GJ|Wh|kWh|MWh)?$", 24, **_NOT_ZERO), BeforeValidator(_refuse_zero)
]

Instant = Annotated[str, _text(_INSTANT, 40), BeforeValidator(_as_instant)]
FuseMode = Annotated[
    Literal["off", "auto"], BeforeValidator(_false_as_off), WithJsonSchema({"enum": ["off", "auto", False]})
]
MemberCount = Annotated[int, Field(ge=1, le=10_000), BeforeValidator(_as_whole)]
StopSignal = Annotated[
    str, AfterValidator(_check_stop_signal), Field(json_schema_extra={"enum": list(STOP_SIGNALS)})
]
TunedSettings = Annotated[
    tuple[Literal["batch_size", "power_limit"], ...], Field(max_length=2), BeforeValidator(as_tuple)
]
RetryCauses = Annotated[
    tuple[Literal["crash", "killed", "node_fail", "error", "out_of_memory", "timeout"], ...],
    Field(max_length=6),
    BeforeValidator(as_tuple),
]
BatchSizes = Annotated[tuple[Count, ...], Field(max_length=64), BeforeValidator(as_tuple)]
TargetText = Annotated[
    str,
    _text(
        r"^[A-Za-z_][A-Za-z0-9_./@-]* ?(?:>=|<=) ?-?[0-9]{1,9}(?:\.[0-9]{1,9})?(?:[eE][-+]?[0-9]{1,2})?$", 200
    ),
]
