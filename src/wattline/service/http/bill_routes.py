"""Routes of the bills, and their response bodies."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from wattline.errors import ConfigError, Conflict
from wattline.service.billing.bill import BillLine, TeamBill, build_bill, parse_month
from wattline.service.billing.savings import Saving
from wattline.service.controller import Controller
from wattline.service.http.routes import Caller, Service, refuse_unknown_parameters

bill_router = APIRouter(dependencies=[Depends(refuse_unknown_parameters)])

MonthText = Annotated[
    str, Query(pattern=r"^([0-9]{4}-[0-9]{2})?$", description="2026-11, in UTC; empty: this month")
]


class _BillBody(BaseModel):
    model_config = ConfigDict(extra="forbid")


class BillLineResponse(_BillBody):
    """Energy and cost of one job, user or team in the month."""

    energy_j: float | None = Field(description="of attempts with known energy; null: of none it is known")
    unknown_attempts: int = Field(description="attempts with unknown energy, which is not part of energy_j")
    gpu_hours: float
    money: float | None = Field(description="null: no tariff is set")
    co2_kg: float | None = Field(description="null: no intensity is set")
    methods: list[str] = Field(description="how the energy was measured")
    jobs: int

    @classmethod
    def from_line(cls, line: BillLine) -> BillLineResponse:
        """Build the response from a line of a bill."""
        return cls(**{**vars(line), "methods": list(line.methods)})


class NamedBillLine(BillLineResponse):
    """The line of a user or team."""

    name: str


class BillJobResponse(BillLineResponse):
    """The line of a job."""

    job: str
    name: str
    user: str
    team: str
    state: str


class SavingResponse(_BillBody):
    """Estimated saving by one mechanism, against its baseline."""

    name: str = Field(description="caps, fusion or tuning; they overlap, so they have no sum")
    baseline: str
    saved_j: float | None = Field(description="negative: it cost more; null: nothing could be estimated")
    error_j: float | None = Field(description="standard error of saved_j; null: unknown")
    extra_s: float | None = Field(description="seconds that jobs ran longer for it; null: unknown")
    jobs: int = Field(description="jobs that were estimated")
    energy_j: float = Field(description="joules of the attempts that were estimated")
    not_estimated_j: float
    reasons: dict[str, int] = Field(description="attempts that were not estimated, by reason")

    @classmethod
    def from_saving(cls, saving: Saving) -> SavingResponse:
        """Build the response from an estimate."""
        return cls(**vars(saving))


class BillResponse(_BillBody):
    """The bill of a month."""

    team: str | None = Field(description="null: of all teams")
    month: str
    since_s: float
    until_s: float
    as_of_s: float
    currency: str
    pue: float = Field(description="part of money and CO₂, not of energy")
    total: BillLineResponse
    teams: list[NamedBillLine]
    users: list[NamedBillLine]
    jobs: list[BillJobResponse]
    savings: list[SavingResponse]
    notes: list[str]
    method: str


@bill_router.get("/api/v1/bill", tags=["bills"])
def show_bill(
    caller: Caller,
    controller: Service,
    month: MonthText = "",
    team: Annotated[
        str | None, Query(max_length=200, description="only this team; empty: jobs without one")
    ] = None,
) -> BillResponse:
    """Show the bill of all teams in a month, or of one: energy, money, CO₂ and savings."""
    return _build(controller, month, team)


@bill_router.get("/api/v1/teams/{team:path}/bill", tags=["bills"])
def show_team_bill(
    team: Annotated[str, Path(max_length=200)], caller: Caller, controller: Service, month: MonthText = ""
) -> BillResponse:
    """Show the bill of one team in a month."""
    return _build(controller, month, team)


def _build(controller: Controller, month: str, team: str | None) -> BillResponse:
    name = month or time.strftime("%Y-%m", time.gmtime(controller.clock()))
    try:
        parsed = parse_month(name)
    except ConfigError as error:
        raise Conflict(error.message) from None
    settings = controller.settings.bill
    bill = build_bill(
        controller.store,
        settings,
        parsed,
        team,
        now_s=controller.clock(),
        models=controller.view().models,
        read_live=controller.live_status,
    )
    return _respond(bill, settings.currency, settings.pue)


def _respond(bill: TeamBill, currency: str, pue: float) -> BillResponse:
    def name_lines(lines: dict[str, BillLine]) -> list[NamedBillLine]:
        return [
            NamedBillLine(name=name, **BillLineResponse.from_line(line).model_dump())
            for name, line in lines.items()
        ]

    return BillResponse(
        team=bill.team,
        month=bill.month.name,
        since_s=bill.month.since_s,
        until_s=bill.month.until_s,
        as_of_s=bill.as_of_s,
        currency=currency,
        pue=pue,
        total=BillLineResponse.from_line(bill.total),
        teams=name_lines(bill.teams),
        users=name_lines(bill.users),
        jobs=[
            BillJobResponse(
                job=one.job,
                name=one.name,
                user=one.user,
                team=one.team,
                state=one.state,
                **BillLineResponse.from_line(one.use).model_dump(),
            )
            for one in bill.jobs
        ],
        savings=[SavingResponse.from_saving(one) for one in bill.savings],
        notes=list(bill.notes),
        method=bill.method,
    )
