"""Contract of power meters."""

from __future__ import annotations

import math

import pytest

from wattline.errors import ConfigError, NotPermitted
from wattline.meter.protocol import Gpu, Meter

_STEPS = 20


class MeterContract:
    """Tests of a meter; a subclass defines `make`, which opens a meter of at least one GPU, always the same.

    *sets*: caps can be set. *exact*: its GPUs do nothing but steps, on its own clock, so that joules are
    watts times seconds to within 1 %. *samples*: number of samples per step.
    """

    sets = True
    exact = False
    samples = 64.0

    def make(self) -> Meter:
        """Return the open meter."""
        raise AssertionError("a subclass of MeterContract must define make()")

    def test_it_implements_the_protocols(self) -> None:
        """Check that meter and GPUs implement the protocols and that GPUs are distinct."""
        meter = self.make()
        assert isinstance(meter, Meter)
        assert meter.name
        assert meter.gpus
        assert all(isinstance(gpu, Gpu) for gpu in meter.gpus)
        assert [gpu.index for gpu in meter.gpus] == list(range(len(meter.gpus)))
        assert len({gpu.uuid for gpu in meter.gpus}) == len(meter.gpus)
        assert all(gpu.name and gpu.method and gpu.spec for gpu in meter.gpus)
        meter.close()
        meter.close()

    def test_a_gpu_is_the_same_in_the_next_session(self) -> None:
        """Check that a GPU keeps its uuid and can be opened by its own spec."""
        from wattline.meter import open_meter

        first, second = self.make(), self.make()
        assert [gpu.uuid for gpu in first.gpus] == [gpu.uuid for gpu in second.gpus]
        for gpu in first.gpus:
            again = open_meter(gpu.spec)
            assert gpu.uuid in [other.uuid for other in again.gpus]
            again.close()
        first.close()
        second.close()

    def test_energy_never_falls_and_time_never_goes_back(self) -> None:
        """Check that energy and time are monotonic."""
        meter = self.make()
        before_j, before_s = [gpu.energy_j() for gpu in meter.gpus], meter.now_s()
        for _ in range(_STEPS):
            meter.stepped(self.samples)
            now_j, now_s = [gpu.energy_j() for gpu in meter.gpus], meter.now_s()
            assert now_s >= before_s
            assert all(now >= before for now, before in zip(now_j, before_j, strict=True))
            before_j, before_s = now_j, now_s
        meter.close()

    def test_power_is_a_number_of_watts(self) -> None:
        """Check that power is between 0 and 5000 W."""
        meter = self.make()
        assert all(0 <= gpu.power_w() < 5000 for gpu in meter.gpus)
        meter.close()

    def test_energy_is_the_integral_of_power(self) -> None:
        """Check the energy of steps, where the GPUs do nothing else."""
        if not self.exact:
            return
        meter = self.make()
        for gpu in meter.gpus:
            start_j, then_s, integral_j = gpu.energy_j(), meter.now_s(), 0.0
            for _ in range(_STEPS):
                meter.stepped(self.samples)
                integral_j += gpu.power_w() * (meter.now_s() - then_s)
                then_s = meter.now_s()
            assert gpu.energy_j() - start_j == pytest.approx(integral_j, rel=0.01)
            assert integral_j > 0
        meter.close()

    def test_a_cap_that_is_set_can_be_read_back(self) -> None:
        """Check that a cap within its range holds, also in the next session, until it is changed."""
        if not self.sets:
            self._check_not_permitted()
            return
        meter = self.make()
        for gpu in meter.gpus:
            least_w, most_w = gpu.cap_range_w()
            assert 0 < least_w <= most_w
            before_w = gpu.cap_w()
            for watts in (least_w, most_w, (least_w + most_w) / 2):
                gpu.set_cap(watts)
                assert gpu.cap_w() == pytest.approx(watts, abs=0.5)
            other = self.make()
            twin = next(twin for twin in other.gpus if twin.uuid == gpu.uuid)
            assert twin.cap_w() == gpu.cap_w()
            other.close()
            gpu.set_cap(before_w)
            assert gpu.cap_w() == pytest.approx(before_w, abs=0.5)
        meter.close()

    def test_a_cap_out_of_range_is_rejected_with_the_range(self) -> None:
        """Check that the cap is unchanged afterwards."""
        if not self.sets:
            return
        meter = self.make()
        for gpu in meter.gpus:
            (least_w, most_w), before_w = gpu.cap_range_w(), gpu.cap_w()
            for watts in (least_w - 5, most_w + 5, -1.0, math.nan):
                with pytest.raises(ConfigError, match=f"{least_w:g} to {most_w:g} W"):
                    gpu.set_cap(watts)
            assert gpu.cap_w() == before_w
        meter.close()

    def test_a_clock_can_be_locked_and_released(self) -> None:
        """Check that clocks can be locked where caps can be set."""
        if not self.sets:
            return
        meter = self.make()
        for gpu in meter.gpus:
            gpu.lock_clock(900.0)
            gpu.lock_clock(None)
        meter.close()

    def _check_not_permitted(self) -> None:
        meter = self.make()
        for gpu in meter.gpus:
            with pytest.raises(NotPermitted):
                gpu.set_cap(200.0)
            with pytest.raises(NotPermitted):
                gpu.lock_clock(900.0)
        meter.close()
