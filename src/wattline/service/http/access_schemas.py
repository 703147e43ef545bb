"""Request and response bodies of quotas, the audit log and token rotation."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from wattline.service.http.request_body import RequestBody, read_whole


class _AccessBody(BaseModel):
    model_config = ConfigDict(extra="forbid")


class QuotaRequest(RequestBody):
    """Quota or share of either a user or a team; fields that are not given stay as they are."""

    team: Annotated[str, Field(pattern=r"^[^\s\x00-\x20\x7f-\xa0:,=]{1,64}$")] | None = None
    user: Annotated[str, Field(pattern=r"^[^\s\x00-\x20\x7f-\xa0:,=]{1,64}$")] | None = None
    gpus: Annotated[int, Field(ge=0, le=10**6), BeforeValidator(read_whole)] | None = None
    gpu_hours_per_week: float | None = Field(default=None, ge=0, le=1e9)
    share: float | None = Field(default=None, ge=1e-6, le=1e9)


class RotationRequest(RequestBody):
    """Validity of the old value of a rotated token."""

    grace_s: float = Field(default=0.0, ge=0, le=30 * 86_400)


class QuotaResponse(_AccessBody):
    """Quota and share of a user or a team, and what is used of it."""

    team: str | None
    user: str | None
    gpus: int | None = Field(description="GPUs at once; null: not limited")
    gpu_hours_per_week: float | None = Field(description="in the last seven days; null: not limited")
    share: float | None = Field(description="weight in the fair share; null: 1")
    gpus_used: int
    gpu_hours_used: float
    gpu_hours_left: float | None
    frees_s: float | None = Field(description="when used-up hours are free again if nothing runs until then")


class AccountResponse(_AccessBody):
    """Fair share of a user in a team. GPU hours decay with the half-life of the policy."""

    team: str
    user: str
    gpu_hours: float
    usage: float = Field(description="fraction of the GPU hours of all")
    share: float = Field(description="fraction of all that is its share")
    factor: float = Field(description="2 to the power of minus usage / share: 1 unused, 0.5 its share")
    rank: int = Field(description="1 goes first")


class QuotasResponse(_AccessBody):
    """Quotas in force, and the fair share of all users and teams."""

    quotas: list[QuotaResponse]
    accounts: list[AccountResponse]


class AuditRecord(_AccessBody):
    """A change that an operator made."""

    seq: int
    at_s: float
    by: str = Field(description="name of the token")
    action: str
    subject: str = Field(description="the job, setting, quota or token that was changed")
    owner: str | None = Field(default=None, description="user of the job")
    before: Any = None
    after: Any = None


class AuditResponse(_AccessBody):
    """A page of the audit log, oldest first; pass the last *seq* as `after` to get the next page."""

    records: list[AuditRecord]
