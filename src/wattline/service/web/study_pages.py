"""Pages of sweeps, recurring groups, teams, prices and what-if studies, and the form that submits."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from wattline.errors import NotFound
from wattline.policy import DEADLINE, ELASTIC, ORDERS
from wattline.reports.figures.prices import name_price_unit
from wattline.service.fair_share import describe_accounts, describe_quotas
from wattline.service.http.job_responses import build_job_responses
from wattline.service.http.routes import PathJobId
from wattline.service.http.whatif_routes import StudyId, find_owner, spell_cluster
from wattline.service.job_trace import count_ended_jobs
from wattline.service.recurring_groups import ETA, list_groups, read_group
from wattline.service.states import LIVE_STATES
from wattline.service.sweep_table import SweepTable, is_better_high, read_sweep
from wattline.service.team_usage import read_team_usage
from wattline.service.web.charts import PageCurve, draw_chart
from wattline.service.web.fronts import draw_front, summarize_front
from wattline.service.web.page import Opened, PageRoute, Zoom
from wattline.service.web.price_history import name_unit, read_prices

study_pages = APIRouter(route_class=PageRoute, include_in_schema=False)

_SHOWN_MEMBERS = 200
_DRAWN_MEMBERS = 1000
_SHOWN_JOBS = 20  # of a recurring group


@study_pages.get("/submit")
def show_submit_form(page: Opened) -> Response:
    """Show the form, which plans a job before it is submitted."""
    page.caller.require_role("user")
    nodes = page.controller.view().nodes
    kinds = sorted({nodes.kind.word(at) for at in range(len(nodes))})
    return page.render("submit.html", "Submit", kinds=kinds, most_gpus=int(nodes.gpus.max()))


@study_pages.get("/sweeps/{job}")
def show_sweep(
    page: Opened,
    job: PathJobId,
    sort: Annotated[str, Query(max_length=200)] = "id",
    descending: Annotated[bool, Query()] = False,
    metric: Annotated[str, Query(max_length=200)] = "",
    highest: Annotated[bool | None, Query()] = None,
) -> Response:
    """Show the members of a sweep, in order of any value, metric or of their energy."""
    table = read_sweep(page.controller, job)
    metric = metric if metric in table.metrics else (table.metrics[0] if table.metrics else "")
    goes_up = is_better_high(metric) if highest is None else highest
    best = table.find_best(metric, goes_up)
    columns = ("id", "state", *table.parameters, *table.metrics, "ran", "energy")
    members = table.sort(sort if sort in columns else "id", descending)
    return page.render(
        "sweep.html",
        f"Sweep {job}",
        table=table,
        members=members[:_SHOWN_MEMBERS],
        shown=_SHOWN_MEMBERS,
        columns=columns,
        sort=sort,
        descending=descending,
        metric=metric,
        highest=goes_up,
        best=best,
        drawing=_build_drawing(table, metric, goes_up),
        may_cancel=page.may_change(table.user) and any(one.state in LIVE_STATES for one in table.members),
    )


def _build_drawing(table: SweepTable, metric: str, highest: bool) -> dict[str, Any]:
    """Return the axes and lines of the parallel coordinates."""
    axes = [*table.parameters, *([metric] if metric else []), "energy"]
    lines = []
    for member in table.members[:_DRAWN_MEMBERS]:
        values = [table.value(member, axis) for axis in axes]
        lines.append({"id": member.id, "values": values})
    units = ["J" if axis == "energy" else "" for axis in axes]
    return {"axes": axes, "units": units, "lines": lines, "metric": metric, "highest": highest}


@study_pages.get("/groups")
def show_groups(page: Opened) -> Response:
    """Show all groups of recurring jobs."""
    return page.render("groups.html", "Recurring groups", groups=list_groups(page.controller.folder))


@study_pages.get("/group")
def show_group(page: Opened, name: Annotated[str, Query(max_length=200)]) -> Response:
    """Show a group of recurring jobs: batch sizes tried, their cost, and the belief about them."""
    group = read_group(page.controller.folder, name)
    jobs = build_job_responses(page.controller, page.controller.store.jobs_of_group(name, _SHOWN_JOBS))
    return page.render("group.html", f"Group {name}", group=group, eta=ETA, jobs=jobs)


@study_pages.get("/teams")
def show_teams(page: Opened) -> Response:
    """Show all teams, with their energy of this month."""
    since_s = _find_month_start(page.controller.clock())
    teams = read_team_usage(page.controller.store, since_s)
    return page.render("teams.html", "Teams", teams=teams, month=_name_month(since_s))


@study_pages.get("/team")
def show_team(
    page: Opened,
    name: Annotated[str, Query(max_length=200)],
    month: Annotated[str, Query(pattern="^([0-9]{4}-[0-9]{2})?$")] = "",
) -> Response:
    """Show a team: the energy of its month, its quota and share, and its bill."""
    controller = page.controller
    since_s = _find_month_start(controller.clock())
    found = [one for one in read_team_usage(controller.store, since_s) if one.team == name]
    if not found:
        raise NotFound(f"there is no team {name!r}")
    view = controller.view()
    return page.render(
        "team.html",
        f"Team {name or '–'}",
        team=found[0],
        month=month or _name_month(since_s),
        this_month=_name_month(since_s),
        quotas=[one for one in describe_quotas(view) if one["team"] == name and name],
        accounts=[one for one in describe_accounts(view) if one["team"] == name],
    )


def _find_month_start(now_s: float) -> float:
    now = datetime.fromtimestamp(now_s, UTC)
    return datetime(now.year, now.month, 1, tzinfo=UTC).timestamp()


def _name_month(at_s: float) -> str:
    return time.strftime("%Y-%m", time.gmtime(at_s))


@study_pages.get("/prices")
def show_prices(page: Opened, zoom: Zoom) -> Response:
    """Show the prices of resources over time, where the policy logs them."""
    history, policy = read_prices(page.controller, zoom), page.controller.describe()["policy"]
    money = name_price_unit([policy])
    charts = [
        draw_chart(
            name,
            f"{money} {name_unit(name)}",
            [PageCurve(name, points, "main", steps=True)],
            page.zone,
            span=zoom,
        )
        for name, points in history.prices.items()
    ]
    return page.render(
        "prices.html",
        "Prices",
        history=history,
        charts=[chart for chart in charts if chart is not None],
        policy=policy,
        money=money,
    )


@study_pages.get("/whatif")
def show_whatif_form(page: Opened) -> Response:
    """Show the form of a what-if study, and the studies of the caller."""
    controller = page.controller
    return page.render(
        "whatif.html",
        "What if",
        cluster=spell_cluster(controller.view().nodes),
        policies=(*ORDERS, *ELASTIC, *DEADLINE),
        ended=count_ended_jobs(controller.store),
        studies=controller.whatif.list_runs(find_owner(page.caller)),
    )


@study_pages.get("/whatif/{id}")
def show_study(page: Opened, id: StudyId) -> Response:
    """Show a what-if study: its progress, then assumptions, the front, and the changes for one's own jobs."""
    run = page.controller.whatif.find(id, find_owner(page.caller))
    world = run.result["worlds"][0] if run.result else None
    return page.render(
        "study.html",
        "What if",
        run=run,
        world=world,
        front=None if world is None else draw_front(world),
        summary=[] if world is None else summarize_front(world),
    )
