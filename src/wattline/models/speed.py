"""Step time of a job: computing plus synchronising.

    step_s    = compute_s(b) / rate + sync_s(n, k)          b = local batch, n GPUs on k nodes
    compute_s = fixed + sample·b + root·√b
    sync_s    = [n>1]·second_gpu + more_gpus·(n/k − 2)⁺ + [k>1]·second_node + more_nodes·(k − 2)⁺

After PowerFlow's reconstruction and Pollux (OSDI'21). Every coefficient is at least 0, so neither more
samples, nor more GPUs, nor a throttled GPU make a step shorter.

*Deviates:* a plain sum, no overlap norm (measured A100 tables do not support one). The √b term, for small
batches that do not fill a GPU, is used only if the corrected Akaike criterion improves. What was not measured
is assumed at its best: with one GPU only, perfect scaling; with one batch size only, steps proportional to
it. Until several nodes are measured, they cost a tenth more than as many GPUs on one node.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace

import numpy as np

from wattline.core.table import Bools, Floats
from wattline.measurement.settings import Settings, fewest_nodes

_SAMPLE, _ROOT, _SECOND_NODE = 1, 2, 5
_COMPUTE_COUNT = 3  # number of leading coefficients that belong to computing
_ACROSS_NODES = 1.1  # Pollux: synchronising across nodes takes at least 1.1 times as long as within one
_NOISE = 0.03  # relative, of a step observed while a job runs
_STEP_STD = np.array(
    [0.002] * 3 + [0.05] * 4
)  # standard deviation of a measured coefficient's part, as a share of a step
_OWN_STD = np.array([0.1] * 3 + [0.05] * 4)  # the same, as a share of the coefficient
_UNMEASURED_STD = 0.5  # the same as a share of a step, if it was not measured
_DRIFT = 0.5 * _STEP_STD  # variance added per update; synchronising is less certain than computing
_MIN_COMPUTE = 0.01  # share of its computing time that a model keeps in every update


@dataclass(frozen=True)
class Speed:
    """Coefficients of the step time in seconds.

    *second_node_s* nan: not measured. *packed*: only jobs on the fewest possible nodes were measured, so a
    job on more nodes is never predicted to be faster.
    """

    fixed_s: float = 0.0
    sample_s: float = 0.0
    root_s: float = 0.0
    second_gpu_s: float = 0.0
    more_gpus_s: float = 0.0
    second_node_s: float = np.nan
    more_nodes_s: float = 0.0
    packed: bool = field(default=False, kw_only=True)
    uncertainty: Floats | None = field(
        default=None, repr=False, compare=False, kw_only=True
    )  # std; nan: default

    def compute_s(self, local_batch: Floats) -> Floats:
        """Return the seconds that an unthrottled GPU computes per step."""
        seconds = self.fixed_s + self.sample_s * local_batch
        return np.asarray(seconds + self.root_s * np.sqrt(local_batch) if self.root_s else seconds)

    def sync_s(self, gpus: Floats, nodes: Floats) -> Floats:
        """Return the seconds per step in which GPUs wait for each other."""
        if (gpus == 1.0).all():
            return np.zeros(len(gpus))
        inside = self._inside_s(gpus, gpus / nodes)
        if (nodes == 1.0).all():
            return inside
        if np.isnan(self.second_node_s):
            return np.where(nodes > 1, _ACROSS_NODES * self._inside_s(gpus, gpus), inside)
        spread = inside + self._across_s(nodes)
        if not self.packed:
            return spread
        fewest = np.minimum(fewest_nodes(gpus), nodes)
        return np.maximum(spread, self._inside_s(gpus, gpus / fewest) + self._across_s(fewest))

    def _inside_s(self, gpus: Floats, node_gpus: Floats) -> Floats:
        return np.asarray(self.second_gpu_s * (gpus > 1) + self.more_gpus_s * np.maximum(node_gpus - 2, 0))

    def _across_s(self, nodes: Floats) -> Floats:
        return np.asarray(self.second_node_s * (nodes > 1) + self.more_nodes_s * np.maximum(nodes - 2, 0))

    def observe(
        self, settings: Settings, stretch: Floats, step_s: Floats, measured: Collection[str] = ()
    ) -> Speed:
        """Return the model updated with steps of *step_s*, their computing part slowed *stretch* times.

        A Kalman-like update: each row moves the coefficients that contribute to it, the less certain ones
        more, until it is explained, and reduces their uncertainty. Observations of one GPU therefore do not
        change the scaling coefficients. *measured* names the knobs that were varied, for a model without
        uncertainties.
        """
        theta = np.array([getattr(self, name) for name in COEFFICIENTS])
        x = build_features(settings)
        x[:, :_COMPUTE_COUNT] *= stretch[:, None]
        x /= step_s[:, None]
        assumed = np.isnan(theta[_SECOND_NODE])
        if assumed:
            theta[_SECOND_NODE] = self._assumed_second_node_s(settings)
        uncertainty = np.full(len(theta), np.nan) if self.uncertainty is None else self.uncertainty
        for row in x:
            std = np.where(np.isnan(uncertainty), _default_uncertainty(theta, row, measured), uncertainty)
            theta, uncertainty = _update(theta, std, row)
        if assumed and (settings.nodes == 1).all():
            theta[_SECOND_NODE] = np.nan
        return Speed(*theta.tolist(), packed=self.packed, uncertainty=uncertainty)

    def _assumed_second_node_s(self, settings: Settings) -> float:
        """Return the seconds that a second node is assumed to add until it is measured."""
        several = settings.take(settings.nodes > 1)
        if not len(several):
            return 0.0
        inside = replace(self, second_node_s=0.0).sync_s(several.gpus, several.nodes)
        return float(np.max(np.maximum(self.sync_s(several.gpus, several.nodes) - inside, 0.0)))


COEFFICIENTS = tuple(f.name for f in fields(Speed) if f.name.endswith("_s"))


def _default_uncertainty(theta: Floats, x: Floats, measured: Collection[str]) -> Floats:
    """Return default uncertainties of the coefficients that contribute to row *x*; nan for the others."""
    gpus, nodes = (name in measured for name in ("gpus", "nodes"))
    varied = np.array([True, True, True, gpus, gpus, nodes, nodes])
    of_step = np.where(varied, _STEP_STD, _UNMEASURED_STD) / np.where(x > 0, x, np.nan)
    return np.hypot(_OWN_STD * theta, of_step)


def _update(theta: Floats, uncertainty: Floats, x: Floats) -> tuple[Floats, Floats]:
    """Return non-negative coefficients and their uncertainties after observing a row with x·theta = 1."""
    least = np.zeros(len(theta))
    least[:_COMPUTE_COUNT] = _MIN_COMPUTE * theta[:_COMPUTE_COUNT]
    # Some variance is added in every update, so that early observations do not dominate.
    variance = np.where(x > 0, np.nan_to_num(uncertainty) ** 2 + (_DRIFT / np.where(x > 0, x, 1.0)) ** 2, 0.0)
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
    posterior = variance * (1.0 - variance * x * x / (float(variance @ (x * x)) + _NOISE**2))
    return moved, np.where(x > 0, np.sqrt(posterior), uncertainty)


def build_features(settings: Settings) -> Floats:
    """Return the factor of each coefficient of `Speed`, one row per setting."""
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
    """Fit the coefficients to unthrottled steps by the least squared relative error."""
    weight = 1.0 / (noise * step_s)
    x, y = build_features(settings) * weight[:, None], step_s * weight
    used = _identifiable(settings)
    without_root = used & (np.arange(len(used)) != _ROOT)
    best, coefficients = _fit_columns(x, y, noise, without_root)
    if used[_ROOT]:
        score, with_root = _fit_columns(x, y, noise, used)
        coefficients = with_root if score < best else coefficients
    if not coefficients[:_COMPUTE_COUNT].any():
        # A fit that explains all time by waiting still gets a small time per sample.
        coefficients[_SAMPLE] = _MIN_COMPUTE * float(np.min(step_s / settings.local_batch))
    off = max(float(np.sqrt(np.mean((build_features(settings) @ coefficients / step_s - 1.0) ** 2))), _NOISE)
    relative = build_features(settings) / step_s[:, None]
    largest = relative.max(axis=0)
    loose = np.diag((np.where(largest > 0, largest, 1.0) / _UNMEASURED_STD) ** 2)
    uncertainty = np.sqrt(np.diag(np.linalg.inv(relative.T @ relative / off**2 + loose)))
    packed = bool((settings.nodes == fewest_nodes(settings.gpus)).all())
    fitted = Speed(*coefficients.tolist(), packed=packed, uncertainty=uncertainty)
    return fitted if used[_SECOND_NODE] else replace(fitted, second_node_s=np.nan)


def _identifiable(settings: Settings) -> Bools:
    """Return a mask of the coefficients that the measurements identify."""
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


def _fit_columns(x: Floats, y: Floats, noise: Floats, columns: Bools) -> tuple[float, Floats]:
    """Fit the coefficients of *columns*; return the corrected Akaike criterion (lower is better) and them."""
    fitted = np.zeros(len(columns))
    fitted[columns], error = _nnls(x[:, columns], y)
    points, used = len(y), int(np.count_nonzero(fitted))
    spare = points - used - 2
    if spare <= 0:
        return np.inf, fitted
    mean2 = max(error**2 * float(np.mean(noise**2)) / points, 1e-12)
    return float(points * np.log(mean2) + 2 * (used + 1) * points / spare), fitted


def _nnls(x: Floats, y: Floats) -> tuple[Floats, float]:
    from scipy.optimize import nnls  # slow to import and not needed for predictions

    scale = np.sqrt((x * x).sum(axis=0))
    scale[scale == 0.0] = 1.0
    fitted, error = nnls(x / scale, y)
    return fitted / scale, float(error)
