"""What comes with the package: fits every published workload and writes src/wattline/models/library.toml.

Reads measurements under $WATTLINE_DATA (default ../shared/data). Only coefficients leave this script, with
the source, the number of points and the mean error at points left out, of what the file itself predicts.

    python benchmarks/fit_library.py > src/wattline/models/library.toml
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import published

from wattline import Profile
from wattline.errors import NotFitted
from wattline.models.fit import fit_workload
from wattline.models.held_out import held_out
from wattline.models.library import models_toml, reread
from wattline.models.power.throttle import Throttle
from wattline.models.speed import Speed
from wattline.models.workload import Source, Workload

HEADER = """\
# Fitted workloads: made by benchmarks/fit_library.py from published measurements, coefficients only.
# points: measurements behind an entry. *_error: mean relative error at points that the fit had not seen.
# measured: the least and the most of each knob (batch, cpus and mem_gib per GPU). Where a model was measured
# by several sources on one kind of GPU, the first is found by its name alone, all by "source/name".
# cap_w, clock_mhz: a row per local batch size. Against caps, rate and watts are ramps (low, slope, start,
# end, soft; model/ramp.py); against clocks, rate is fixed, work, top, soft (model/pace.py) and watts are
# still, per_mhz, knee, rise (model/volts.py). bend is what the law of the speed misses at a batch size.
"""
SOURCES = ("zeus", "elasticflow", "perseus", "gavel", "pollux", "synergy")


def main() -> None:
    fitted = [entry for source in SOURCES for entry in fit_source(source)]
    print(HEADER)
    print(models_toml(fitted), end="")


def fit_source(source: str) -> Iterator[Workload]:
    for profile in getattr(published, source)():
        try:
            found = through_file(profile)
        except NotFitted:
            found = constant(profile)  # one measurement: a speed, but nothing that could be varied
        errors = held_out(profile, through_file)
        where = Source(source, len(profile), errors.samples_error, errors.watts_error)
        print(f"{source} {found.model} {found.gpu} {where}", file=sys.stderr)
        yield replace(found, source=where)


def through_file(profile: Profile) -> Workload:
    """The fit as somebody sees it who has the file only."""
    return reread(fit_workload(profile))


def constant(profile: Profile) -> Workload:
    gpu = profile.gpu.word(0)
    speed = Speed(sample_s=float(profile.settings.local_batch[0] * profile.gpus[0] / profile.samples_s[0]))
    throttle = Throttle(gpu, np.ones(1), np.full(1, np.nan))
    return Workload(profile.model.word(0), gpu, speed, throttle, usual_batch=float(profile.batch[0]))


if __name__ == "__main__":
    main()
