"""Power of devices by public meters: the measured figures of measurement/devices.py.

A100 (SXM, 8 to a server): GPUs by DCGM and servers by IPMI in Acme's clusters. H100 (SXM, 8 to a server):
node meters of MLPerf Training's power submissions; these also show the power of GPUs that wait for others.

    python benchmarks/fit_devices.py
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from published import DATA, read_rows

from wattline.measurement.devices import DEVICES


def main() -> None:
    fit_a100_from_acme()
    fit_h100_from_mlperf()


def fit_a100_from_acme() -> None:
    columns = defaultdict(list)
    for row in read_rows(DATA / "acme/power_cdf.csv"):
        for name, value in row.items():
            columns[name].append(float(value))
    share = np.array(columns["percentile"])
    gpu, server = np.array(columns["gpu_power_seren_W"]), np.array(columns["gpu_server_power_W"])
    # The lowest hundredth of the readings, without the very lowest, which are broken: nothing runs there.
    still = (share > 0.1) & (share <= 1.0)
    idle_w = float(np.median(gpu[still]))
    base_w = float(np.median(server[still])) - 8 * idle_w
    busy_w = float(np.mean(gpu[gpu > DEVICES["a100"].max_w / 2]))
    print(f"a100: idle {idle_w:.0f} W, busy {busy_w:.0f} W (mean of readings above half its limit)")
    print(f"      the rest of a server {base_w:.0f} W")


def fit_h100_from_mlperf() -> None:
    runs = defaultdict(list)
    for row in read_rows(DATA / "mlperf_power/node_power.csv.gz"):
        if row["device"].startswith("node_") and row["submitter"] == "smc-ac-power":
            nodes = int(row["system"].partition("x")[0])
            point = [float(row[k]) for k in ("p5_W", "median_W", "p95_W", "logged_s")]
            runs[row["benchmark"], nodes].append(point)
    middle = {key: np.median(points, axis=0) for key, points in runs.items()}
    alone = {name: m for (name, nodes), m in middle.items() if nodes == 1}
    idle_w = DEVICES["h100"].idle_w
    base_w = min(m[0] for m in alone.values()) - 8 * idle_w
    busy_w = (float(np.median([m[2] for m in alone.values()])) - base_w) / 8
    print(f"h100: idle {idle_w:.0f} W (assumed), busy {busy_w:.0f} W, the rest of a server {base_w:.0f} W")
    waits = []
    for (name, nodes), (_, _, watts, seconds) in sorted(middle.items()):
        if nodes > 1 and name in alone:
            share = alone[name][3] / (nodes * seconds)  # of the time in which GPUs compute, by the scaling
            draw = (watts - base_w) / (alone[name][2] - base_w)
            wait = (draw - share) / (1 - share)
            waits.append((1 - share, draw - share))
            print(
                f"      {name} on {nodes} nodes: a GPU draws {draw:.2f} of its power on one,"
                f" computing {share:.2f} of the time: waiting {wait:.2f}"
            )
    x, y = np.array(waits).T
    print(f"      waiting over computing, least squares: {float(x @ y / (x @ x)):.2f}")


if __name__ == "__main__":
    main()
