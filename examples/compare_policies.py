"""Four policies on a small synthetic trace: mean JCT, p99 and stops."""

import wattline as wl
from wattline import policy as p

jobs = wl.synth(count=800, seed=7, load=1.3, gpus_total=32)
cluster = wl.nodes("v100", count=4, gpus=8)
for policy in (p.fifo, p.srtf, p.Las(), p.chain(p.Las(), p.keep)):
    found = wl.report(wl.run(wl.Sim(jobs, cluster), policy))
    print(
        f"{found.policy:25} mean JCT {found.jct_mean_s / 3600:5.1f} h, p99 {found.jct_p99_s / 3600:5.1f} h, "
        f"{found.preemptions} stops"
    )
