import pytest

from wattline import policy as p
from wattline.testing import PolicyContract, QuotaContract


@pytest.mark.slow
class TestFairShareBehindPriority(PolicyContract):
    policy = p.chain(p.priority, p.FairShare(half_life_s=600.0, age_s=300.0), p.keep)


@pytest.mark.slow
class TestFairShareBehindSrtf(PolicyContract):
    policy = p.chain(p.srtf, p.FairShare(half_life_s=600.0))


@pytest.mark.slow
class TestFairShareBeforeAfs(PolicyContract):
    policy = p.chain(p.FairShare(), p.Afs(quantum_s=60.0))


@pytest.mark.slow
class TestFairShareBeforePollux(PolicyContract):
    policy = p.chain(p.FairShare(), p.Pollux())


@pytest.mark.slow
class TestFairShareBeforePowerFlow(PolicyContract):
    policy = p.chain(p.FairShare(half_life_s=600.0), p.PowerFlow(eta=0.5))


class TestQuotasOfFifo(QuotaContract):
    policy = p.fifo


class TestQuotasOfAuto(QuotaContract):
    policy = p.chain(p.priority, p.FairShare(half_life_s=600.0), p.keep, p.Fuse())


class TestQuotasOfSrtf(QuotaContract):
    policy = p.srtf


@pytest.mark.slow
class TestQuotasOfGandiva(QuotaContract):
    policy = p.Gandiva(slice_s=60.0)


@pytest.mark.slow
class TestQuotasOfAfs(QuotaContract):
    policy = p.Afs(quantum_s=60.0)


@pytest.mark.slow
class TestQuotasOfPollux(QuotaContract):
    policy = p.Pollux()


@pytest.mark.slow
class TestQuotasOfPowerFlow(QuotaContract):
    policy = p.chain(p.FairShare(), p.PowerFlow(eta=0.5), p.Fuse())


@pytest.mark.slow
class TestQuotasOfElasticFlow(QuotaContract):
    policy = p.ElasticFlow(quantum_s=60.0)


@pytest.mark.slow
class TestQuotasOfAndreas(QuotaContract):
    policy = p.Andreas(method="greedy")
    spans_nodes = False


@pytest.mark.slow
class TestFairShareBeforeMarket(PolicyContract):
    policy = p.chain(p.FairShare(half_life_s=600.0), p.Market(energy_price=1e-4))


@pytest.mark.slow
class TestQuotasOfMarket(QuotaContract):
    policy = p.chain(p.FairShare(), p.Market(), p.Fuse())
