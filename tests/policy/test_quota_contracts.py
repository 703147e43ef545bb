import pytest

from wattline import policy as p
from wattline.testing import PolicyContract, QuotaContract


class TestFairShareBehindPriority(PolicyContract):
    policy = p.chain(p.priority, p.FairShare(half_life_s=600.0, age_s=300.0), p.keep)


class TestFairShareBehindSrtf(PolicyContract):
    policy = p.chain(p.srtf, p.FairShare(half_life_s=600.0))


@pytest.mark.slow
class TestFairShareBeforeAfs(PolicyContract):
    policy = p.chain(p.FairShare(), p.Afs(quantum_s=60.0))


class TestFairShareBeforePollux(PolicyContract):
    policy = p.chain(p.FairShare(), p.Pollux())


class TestFairShareBeforePowerFlow(PolicyContract):
    policy = p.chain(p.FairShare(half_life_s=600.0), p.PowerFlow(eta=0.5))


class TestQuotasOfFifo(QuotaContract):
    policy = p.fifo


class TestQuotasOfAuto(QuotaContract):
    policy = p.chain(p.priority, p.FairShare(half_life_s=600.0), p.keep, p.Fuse())


class TestQuotasOfSrtf(QuotaContract):
    policy = p.srtf


class TestQuotasOfGandiva(QuotaContract):
    policy = p.Gandiva(slice_s=60.0)


class TestQuotasOfAfs(QuotaContract):
    policy = p.Afs(quantum_s=60.0)


@pytest.mark.slow
class TestQuotasOfPollux(QuotaContract):
    policy = p.Pollux()


class TestQuotasOfPowerFlow(QuotaContract):
    policy = p.chain(p.FairShare(), p.PowerFlow(eta=0.5), p.Fuse())


@pytest.mark.slow
class TestQuotasOfElasticFlow(QuotaContract):
    policy = p.ElasticFlow(quantum_s=60.0)


@pytest.mark.slow
class TestQuotasOfAndreas(QuotaContract):
    policy = p.Andreas(method="greedy")
    spans_nodes = False
