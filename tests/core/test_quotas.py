import pytest

from wattline.core.quotas import QuotaRule, Quotas, parse_quota
from wattline.errors import ConfigError


def test_a_quota_is_parsed_as_it_is_typed() -> None:
    assert parse_quota("team:vision:gpus=8,gpu-hours-per-week=500,share=2") == QuotaRule(
        "team", "vision", 8, 500.0, 2.0
    )
    assert parse_quota("user:ann:gpus=0") == QuotaRule("user", "ann", 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "vision:gpus=8",
        "team:vision",
        "team:vision:",
        "team::gpus=8",
        "team:vision:gpus",
        "team:vision:gpus=1.5",
        "team:vision:gpus=-1",
        "team:vision:cpus=1",
        "team:vision:share=0",
        "team:vision:share=nan",
        "team:vision:gpu_hours_per_week=inf",
        "team:vision:gpus=1,gpus=2",
        "team:a b:gpus=1",
    ],
)
def test_an_invalid_quota_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_quota(text)


def test_quotas_survive_the_header_of_a_log() -> None:
    quotas = Quotas((QuotaRule("team", "vision", 8), QuotaRule("user", "ann", None, 0.0, 3.0)))
    assert Quotas.from_list(quotas.as_list()) == quotas
    assert [str(rule) for rule in quotas.limits] == ["team vision", "user ann"]


def test_one_owner_has_one_quota() -> None:
    with pytest.raises(ConfigError, match="two quotas"):
        Quotas((QuotaRule("team", "vision", 8), QuotaRule("team", "vision", 4)))
