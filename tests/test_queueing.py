"""Queueing theory: closed forms that the simulator must meet."""

import math

import numpy as np
import pytest

from support.simulations import first_start_times, simulate
from wattline import policy as p
from wattline.core.jobs import Jobs

pytestmark = pytest.mark.slow


def erlang_c_wait_s(arrivals_per_s: float, service_s: float, servers: int) -> float:
    """Return the mean wait in an M/M/c queue."""
    offered = arrivals_per_s * service_s
    rho = offered / servers
    below = math.fsum(offered**k / math.factorial(k) for k in range(servers))
    top = offered**servers / math.factorial(servers) / (1 - rho)
    return top / (below + top) * service_s / (servers * (1 - rho))


def mean_wait_s(servers: int, load: float, seed: int, count: int) -> float:
    """Return the mean wait of the second half of a simulated queue, in its steady state."""
    rng = np.random.default_rng(seed)
    service_s = 1000.0
    gaps_s = rng.exponential(service_s / (servers * load), count)
    jobs = Jobs.of(
        submit_s=np.cumsum(gaps_s),
        gpus=np.ones(count, dtype=np.int64),
        duration_s=rng.exponential(service_s, count),
    )
    started = first_start_times(simulate(jobs, p.fifo, gpus=servers))
    waits = np.array([started[str(row)] for row in range(count)]) - jobs.submit_s
    return float(waits[count // 2 :].mean())


@pytest.mark.parametrize(("servers", "load"), [(1, 0.5), (4, 0.7), (8, 0.8)])
def test_the_mean_wait_of_an_mmc_queue_is_erlangs(servers: int, load: float) -> None:
    waits = [mean_wait_s(servers, load, seed, 4000) for seed in range(12)]
    expected = erlang_c_wait_s(servers * load / 1000.0, 1000.0, servers)
    error = np.std(waits, ddof=1) / math.sqrt(len(waits))
    assert abs(np.mean(waits) - expected) < 3.1 * error  # 99 % of Student's t with 11 degrees of freedom
    assert error < 0.15 * expected  # otherwise the confidence interval would be too wide to fail
