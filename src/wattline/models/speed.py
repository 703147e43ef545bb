"""How long a step takes on so many GPUs: computing plus synchronising.

    step_s    = compute_s(b) / rate + sync_s(n, k)          b = local batch, n GPUs on k nodes
    compute_s = fixed + sample·b + root·√b
    sync_s    = [n>1]·second_gpu + more_gpus·(n/k − 2)⁺ + [k>1]·second_node + more_nodes·(k − 2)⁺

After PowerFlow's reconstruction and Pollux (OSDI'21). Every coefficient is at least 0, so more samples
or more GPUs never make a step shorter by themselves, and a throttled GPU never makes it shorter.

Deviates: a plain sum, no overlap norm (measured A100 tables do not support one). √b, the small batch
that does not fill a GPU, is there only where the corrected Akaike criterion says that it earns its
place. What was never measured is taken at its best: one GPU only, then perfect scaling; one batch size
only, then steps proportional to it. Several nodes cost a tenth more than as many GPUs on one, until they
are measured.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace

import numpy as np

from wattline.core.table import Bools, Floats
from wattline.measurement.settings import Settings, fewest_nodes

_SAMPLE, _ROOT, _SECOND_NODE = 1, 2, 5
_COMPUTES = 3  # the first coefficients are of computing
_ACROSS = 1.1  # Pollux: across nodes at least 1.1 times what it is inside one
_NOISE = 0.03  # relative, of a step that is looked at while it runs
_SURE = np.array([0.002] * 3 + [0.05] * 4)  # of a step, what a coefficient may be off by
_OWN = np.array([0.1] * 3 + [0.05] * 4)  # the same, of the coefficient itself
_UNSURE = 0.5  # the same, if it was never measured
_DRIFT = 0.5 * _SURE  # the same, after every surprise; how long GPUs wait is less certain than computing
_LEAST = 0.01  # of its computing a model keeps, whatever it sees


@dataclass(frozen=True)
class Speed:
    """Seconds of each part of a step; prints its coefficients.

    *second_node_s* nan: never measured. *packed*: only jobs on as few nodes as possible were measured,
    so that nothing says a spread one is faster.
    """

    fixed_s: float = 0.0
    sample_s: float = 0.0
    root_s: float = 0.0
    second_gpu_s: float = 0.0
    more_gpus_s: float = 0.0
    second_node_s: float = np.nan
    more_nodes_s: float = 0.0
    packed: bool = field(default=False, kw_only=True)
    unsure: Floats | None = field(default=None, repr=False, compare=False, kw_only=True)  # nan: unsaid

    def compute_s(self, local_batch: Floats) -> Floats:
        """Seconds a GPU computes for a step, not held back."""
        seconds = self.fixed_s + self.sample_s * local_batch
        return np.asarray(seconds + self.root_s * np.sqrt(local_batch) if self.root_s else seconds)

    def sync_s(self, gpus: Floats, nodes: Floats) -> Floats:
        """Seconds GPUs wait for each other in a step."""
        if (gpus == 1.0).all():
            return np.zeros(len(gpus))
        inside = self._inside_s(gpus, gpus / nodes)
        if (nodes == 1.0).all():
            return inside
        if np.isnan(self.second_node_s):
            return np.where(nodes > 1, _ACROSS * self._inside_s(gpus, gpus), inside)
        spread = inside + self._across_s(nodes)
        if not self.packed:
            return spread
        fewest = np.minimum(fewest_nodes(gpus), nodes)
        return np.maximum(spread, self._inside_s(gpus, gpus / fewest) + self._across_s(fewest))

    def _inside_s(self, gpus: Floats, of_node: Floats) -> Floats:
        return np.asarray(self.second_gpu_s * (gpus > 1) + self.more_gpus_s * np.maximum(of_node - 2, 0))

    def _across_s(self, nodes: Floats) -> Floats:
        return np.asarray(self.second_node_s * (nodes > 1) + self.more_nodes_s * np.maximum(nodes - 2, 0))

    def observe(
        self, settings: Settings, stretch: Floats, step_s: Floats, measured: Collection[str] = ()
    ) -> Speed:
        """The model after steps took *step_s*, their computing part *stretch* times as long as it can be.

        Each row moves the coefficients that take part in it, the less sure ones more, until it is
        explained; they are surer then. So what is seen of one GPU leaves alone what is known of
        many. *measured* names the knobs that were ever varied, for a model that came without doubts.
        """
        theta = np.array([getattr(self, name) for name in COEFFICIENTS])
        x = features(settings)
        x[:, :_COMPUTES] *= stretch[:, None]
        x /= step_s[:, None]
        guessed = np.isnan(theta[_SECOND_NODE])
        if guessed:
            theta[_SECOND_NODE] = self._guess(settings)
        unsure = np.full(len(theta), np.nan) if self.unsure is None else self.unsure
        for row in x:
            doubts = np.where(np.isnan(unsure), _unsure(theta, row, measured), unsure)
            theta, unsure = _moved(theta, doubts, row)
        if guessed and (settings.nodes == 1).all():
            theta[_SECOND_NODE] = np.nan
        return Speed(*theta.tolist(), packed=self.packed, unsure=unsure)

    def _guess(self, settings: Settings) -> float:
        """What a second node adds, by what is believed until one is measured."""
        several = settings.take(settings.nodes > 1)
        if not len(several):
            return 0.0
        inside = replace(self, second_node_s=0.0).sync_s(several.gpus, several.nodes)
        return float(np.max(np.maximum(self.sync_s(several.gpus, several.nodes) - inside, 0.0)))


COEFFICIENTS = tuple(f.name for f in fields(Speed) if f.name.endswith("_s"))


def _unsure(theta: Floats, x: Floats, measured: Collection[str]) -> Floats:
    """What coefficients may be off by of which nobody says it, if they take part in a row; else nan."""
    gpus, nodes = (name in measured for name in ("gpus", "nodes"))
    varied = np.array([True, True, True, gpus, gpus, nodes, nodes])
    of_step = np.where(varied, _SURE, _UNSURE) / np.where(x > 0, x, np.nan)
    return np.hypot(_OWN * theta, of_step)


def _moved(theta: Floats, unsure: Floats, x: Floats) -> tuple[Floats, Floats]:
    """Coefficients, none below 0, and their doubts after a row with x·theta = 1 was seen."""
    least = np.zeros(len(theta))
    least[:_COMPUTES] = _LEAST * theta[:_COMPUTES]
    # What takes part in a surprise may always be a little off: else the first surprises would rule.
    variance = np.where(x > 0, np.nan_to_num(unsure) ** 2 + (_DRIFT / np.where(x > 0, x, 1.0)) ** 2, 0.0)
    moved, free = theta.copy(), x > 0
    for _ in range(len(theta)):
        pull = np.where(free, variance * x, 0.0)
        spread = float(pull @ x)
        missing = 1.0 - float(x @ moved)
        if spread <= 0.0:
            break
        moved = moved + pull / spread * missing
        below = free & (moved < least)
        moved[below] = least[below]
        free &= ~below
        if not below.any():
            break
    surer = variance * (1.0 - variance * x * x / (float(variance @ (x * x)) + _NOISE**2))
    return moved, np.where(x > 0, np.sqrt(surer), unsure)


def features(settings: Settings) -> Floats:
    """What each coefficient of `Speed` is multiplied with, one row per setting."""
    batch, gpus, nodes = settings.local_batch, settings.gpus, settings.nodes
    return np.column_stack(
        (
            np.ones(len(gpus)),
            batch,
            np.sqrt(batch),
            gpus > 1,
            np.maximum(gpus / nodes - 2, 0),
            nodes > 1,
            np.maximum(nodes - 2, 0),
        )
    )


def fit_speed(settings: Settings, step_s: Floats, noise: Floats) -> Speed:
    """The coefficients with the least squared relative error of steps that nothing held back."""
    weight = 1.0 / (noise * step_s)
    x, y = features(settings) * weight[:, None], step_s * weight
    used = _observed(settings)
    straight = used & (np.arange(len(used)) != _ROOT)
    best, coefficients = _scored(x, y, noise, straight)
    if used[_ROOT]:
        score, bent = _scored(x, y, noise, used)
        coefficients = bent if score < best else coefficients
    if not coefficients[:_COMPUTES].any():
        # Whatever waiting explains, samples take time.
        coefficients[_SAMPLE] = _LEAST * float(np.min(step_s / settings.local_batch))
    off = max(float(np.sqrt(np.mean((features(settings) @ coefficients / step_s - 1.0) ** 2))), _NOISE)
    relative = features(settings) / step_s[:, None]
    largest = relative.max(axis=0)
    loose = np.diag((np.where(largest > 0, largest, 1.0) / _UNSURE) ** 2)
    unsure = np.sqrt(np.diag(np.linalg.inv(relative.T @ relative / off**2 + loose)))
    packed = bool((settings.nodes == fewest_nodes(settings.gpus)).all())
    found = Speed(*coefficients.tolist(), packed=packed, unsure=unsure)
    return found if used[_SECOND_NODE] else replace(found, second_node_s=np.nan)


def _observed(settings: Settings) -> Bools:
    """Which coefficients the measurements can say anything about."""
    sizes = len(np.unique(settings.local_batch))
    return np.array(
        (
            sizes > 1,
            True,
            sizes > 3,
            (settings.gpus > 1).any() and len(np.unique(settings.gpus)) > 1,
            (settings.gpus / settings.nodes > 2).any() and len(np.unique(settings.gpus / settings.nodes)) > 1,
            (settings.nodes > 1).any() and len(np.unique(settings.nodes)) > 1,
            (settings.nodes > 2).any() and len(np.unique(settings.nodes)) > 1,
        )
    )


def _scored(x: Floats, y: Floats, noise: Floats, columns: Bools) -> tuple[float, Floats]:
    """The best coefficients of these *columns*, and their corrected Akaike criterion: lower is better."""
    found = np.zeros(len(columns))
    found[columns], error = _nnls(x[:, columns], y)
    points, used = len(y), int(np.count_nonzero(found))
    spare = points - used - 2
    if spare <= 0:
        return np.inf, found
    mean2 = max(error**2 * float(np.mean(noise**2)) / points, 1e-12)
    return float(points * np.log(mean2) + 2 * (used + 1) * points / spare), found


def _nnls(x: Floats, y: Floats) -> tuple[Floats, float]:
    from scipy.optimize import nnls  # takes a while to import, and predicting does not need it

    scale = np.sqrt((x * x).sum(axis=0))
    scale[scale == 0.0] = 1.0
    found, error = nnls(x / scale, y)
    return found / scale, float(error)
