"""How long a step takes on so many GPUs: computing plus synchronising.

    step_s    = compute_s(b) / rate + sync_s(n, k)          b = local batch, n GPUs on k nodes
    compute_s = fixed + sample·b + root·√b
    sync_s    = [n>1]·second_gpu + more_gpus·(n/k − 2)⁺ + [k>1]·second_node + more_nodes·(k − 2)⁺

After PowerFlow's reconstruction and Pollux (OSDI'21). Every coefficient is at least 0, so more samples
or more GPUs never make a step shorter by themselves, and a throttled GPU never makes it shorter.

Deviates: a plain sum, no overlap norm (measured A100 tables do not support one). √b, the small batch
that does not fill a GPU, is there only where the corrected Akaike criterion says that it earns its
place. What was never measured is taken at its best: one GPU only, then perfect scaling; one batch size
only, then steps proportional to it. A second node costs at least a tenth of the synchronisation inside
one, until it is measured.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field, replace

import numpy as np

from wattline.profile.settings import Settings
from wattline.table import Bools, Floats

_ROOT = 2
_NODE_PENALTY = 0.1  # Pollux: across nodes at least 1.1 times what it is inside one
_FORGET = 0.5  # of what was known, at each surprise


@dataclass(frozen=True)
class Speed:
    """Seconds of each part of a step; prints its coefficients."""

    fixed_s: float = 0.0
    sample_s: float = 0.0
    root_s: float = 0.0
    second_gpu_s: float = 0.0
    more_gpus_s: float = 0.0
    second_node_s: float = 0.0
    more_nodes_s: float = 0.0
    known: tuple[Floats, Floats] | None = field(default=None, repr=False, compare=False, kw_only=True)

    def compute_s(self, local_batch: Floats) -> Floats:
        """Seconds a GPU computes for a step, not held back."""
        seconds = self.fixed_s + self.sample_s * local_batch
        return np.asarray(seconds + self.root_s * np.sqrt(local_batch) if self.root_s else seconds)

    def sync_s(self, gpus: Floats, nodes: Floats) -> Floats:
        """Seconds GPUs wait for each other in a step."""
        if (gpus == 1.0).all():
            return np.zeros(len(gpus))
        inside = self.second_gpu_s * (gpus > 1) + self.more_gpus_s * np.maximum(gpus / nodes - 2, 0)
        if (nodes == 1.0).all():
            return np.asarray(inside)
        across = self.second_node_s * (nodes > 1) + self.more_nodes_s * np.maximum(nodes - 2, 0)
        return np.asarray(inside + across)

    def observe(self, settings: Settings, stretch: Floats, step_s: Floats) -> Speed:
        """The model after steps took *step_s*, their computing part *stretch* times as long as it can be.

        What is known is a sum of squares; half of it is forgotten, and the new rows are added.
        """
        x = features(settings)
        x[:, :3] *= stretch[:, None]
        x /= step_s[:, None]
        gram, moment = self._known(x)
        gram = _FORGET * gram + x.T @ x
        moment = _FORGET * moment + x.sum(axis=0)
        return replace(_from_sums(gram, moment), known=(gram, moment))

    def _known(self, x: Floats) -> tuple[Floats, Floats]:
        """Sums of squares that say "as the coefficients are", as firmly as one measurement would."""
        if self.known is not None:
            return self.known
        coefficients = np.array(astuple(replace(self, known=None))[:-1])
        scale = np.maximum(np.abs(x).max(axis=0), 1e-12)
        gram = np.diag(scale * scale) / len(scale)
        return gram, np.asarray(gram @ coefficients)


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
    speed = Speed(*coefficients.tolist())
    if speed.second_gpu_s and not used[5]:
        widest = settings.gpus.max()
        inside = float(speed.sync_s(np.array([widest]), np.ones(1))[0])
        speed = replace(speed, second_node_s=_NODE_PENALTY * inside)
    return speed


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


def _from_sums(gram: Floats, moment: Floats) -> Speed:
    values, vectors = np.linalg.eigh(gram)
    kept = values > 1e-12 * values[-1]
    half = (vectors[:, kept] * np.sqrt(values[kept])).T
    target = (vectors[:, kept] / np.sqrt(values[kept])).T @ moment
    return Speed(*_nnls(half, target)[0].tolist())


def _nnls(x: Floats, y: Floats) -> tuple[Floats, float]:
    from scipy.optimize import nnls  # takes a while to import, and predicting does not need it

    scale = np.sqrt((x * x).sum(axis=0))
    scale[scale == 0.0] = 1.0
    found, error = nnls(x / scale, y)
    return found / scale, float(error)
