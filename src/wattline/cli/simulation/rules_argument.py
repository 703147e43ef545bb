"""Rules of `--rules` in a simulation: assumptions, quotas and the slowdown of jobs that spread."""

from __future__ import annotations

from wattline.backend.sim.spread_speeds import SpreadPenalty
from wattline.core.jobs import Jobs
from wattline.core.quotas import Quotas
from wattline.reports.assumptions import Assumption
from wattline.rules.binding import BoundRules
from wattline.rules.describe import list_parts
from wattline.rules.rule_set import RuleSet

WITHOUT = "left out"
"""The other value of a rule, against which its effect is shown."""


def list_rule_assumptions(bound: BoundRules | None) -> tuple[Assumption, ...]:
    """Return each part of the rules as an assumption, to be checked by leaving it out."""
    if bound is None:
        return ()
    waiting = 0 if bound.dependencies is None else int(bound.dependencies.waiting_jobs.sum())
    limits = bound.node_limits
    parts = list_parts(bound.rules, waiting, 0 if limits is None else limits.known_jobs)
    return tuple(Assumption(*part, WITHOUT) for part in parts)


def join_quotas(given: Quotas, rules: RuleSet, jobs: Jobs) -> Quotas:
    """Return the quotas *given*, and those of *rules* for other users and teams that have jobs."""
    known = {"team": set(jobs.team.words()), "user": set(jobs.user.words())}
    more = [
        rule
        for rule in rules.quotas
        if rule.name in known[rule.owner] and given.find(rule.owner, rule.name) is None
    ]
    return Quotas((*given.rules, *more))


def find_spread(bound: BoundRules | None) -> SpreadPenalty | None:
    """Return the slowdown of jobs in several racks or pods; None: there is none."""
    if bound is None or bound.nodes is None or not (bound.nodes.penalty > 1).any():
        return None
    return SpreadPenalty(bound.nodes.rack, bound.nodes.pod, bound.nodes.penalty)
