import pytest

from wattline import policy as p
from wattline.papers import drf_published, ftf_published, tetris_published
from wattline.placement import Pack
from wattline.testing import PolicyContract


class TestFifo(PolicyContract):
    policy = p.fifo


class TestSjf(PolicyContract):
    policy = p.sjf


class TestSrtf(PolicyContract):
    policy = p.srtf


class TestSrsf(PolicyContract):
    policy = p.srsf


class TestEdf(PolicyContract):
    policy = p.edf


class TestPriority(PolicyContract):
    policy = p.priority


class TestLas(PolicyContract):
    policy = p.Las(quantum_s=60.0)


class TestTiresias(PolicyContract):
    policy = p.Tiresias(thresholds_gpu_s=(100.0, 1000.0), promote=2.0)


class TestTiresiasBySubmission(PolicyContract):
    policy = p.Tiresias(thresholds_gpu_s=(100.0, 1000.0), promote=2.0, within="submission")


class TestGittins(PolicyContract):
    policy = p.Gittins(thresholds_gpu_s=(100.0, 1000.0), promote=2.0, quantum_s=60.0)


class TestGittinsWithoutQueues(PolicyContract):
    policy = p.Gittins(quantum_s=60.0, index="best", last=5)


class TestFtf(PolicyContract):
    policy = p.Ftf(quantum_s=60.0)


class TestGandiva(PolicyContract):
    policy = p.Gandiva(slice_s=60.0)


class TestLasWithoutPreemption(PolicyContract):
    policy = p.chain(p.Las(), p.keep)


class TestFifoGreedy(PolicyContract):
    policy = p.fifo
    place = Pack("greedy")


class TestSrtfStrict(PolicyContract):
    policy = p.srtf
    place = Pack("none")


class TestAfs(PolicyContract):
    policy = p.Afs(quantum_s=60.0)


class TestAfsWithKnownLengths(PolicyContract):
    policy = p.Afs("known")


class TestPollux(PolicyContract):
    policy = p.Pollux()


class TestPolluxThatExplores(PolicyContract):
    policy = p.Pollux(explore=2.0)


class TestCap(PolicyContract):
    policy = p.Cap()


class TestCapAfterGandiva(PolicyContract):
    policy = p.chain(p.Gandiva(slice_s=60.0), p.Cap(eta=1.0, slowdown=1.5))


class TestCapAfterAfs(PolicyContract):
    policy = p.chain(p.Afs(), p.Cap())


@pytest.mark.parametrize("name", p.ORDERS)
def test_every_order_has_a_contract(name: str) -> None:
    assert f"Test{name.capitalize()}" in globals()


class TestDrf(PolicyContract):
    policy = p.drf


class TestTetris(PolicyContract):
    policy = p.tetris


@pytest.mark.slow
class TestDemandBeforeSrtf(PolicyContract):
    policy = p.chain(p.Demand(), p.srtf)


class TestDrfPublished(PolicyContract):
    policy = drf_published


class TestTetrisPublished(PolicyContract):
    policy = tetris_published


class TestFtfPublished(PolicyContract):
    policy = ftf_published
