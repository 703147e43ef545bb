"""Kernels of the batch-size tuner: curves over batch sizes, and what runs and trials are expected to cost."""

from __future__ import annotations

import math

import numpy as np

from wattline.core.table import Floats
from wattline.jit import F1, F2, FLOAT, I1, INT, inner, kernel

DEGREES = 4.0  # degrees of freedom of Student's t for the residual scale


@inner
def _positive_part(mean: float, spread: float) -> float:
    """Return E[max(0, −X)] of a normal X."""
    spread = max(spread, 1e-12)
    z = min(max(mean / spread, -30.0), 30.0)
    return float(
        spread * math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) - mean * 0.5 * math.erfc(z / math.sqrt(2.0))
    )


@inner
def _normal_below(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


@inner
def _cholesky(matrix: Floats) -> Floats:
    size = len(matrix)
    root = np.zeros((size, size))
    for i in range(size):
        for j in range(i + 1):
            total = matrix[i, j]
            for k in range(j):
                total -= root[i, k] * root[j, k]
            root[i, j] = math.sqrt(max(total, 1e-300)) if i == j else total / root[j, j]
    return root


@kernel(F2, F2, F2, F1, F1, F1)
def sample_posterior(
    form: Floats, covariance: Floats, normals: Floats, observed: Floats, variance: Floats, log_prior: Floats
) -> Floats:
    """Return draws of a curve given the *observed* values (nan: not observed) with *variance*.

    Forms are resampled by their likelihood and get a residual. *log_prior*: additional log weights of the
    forms. Weights and residuals have Student's t tails.
    """
    draws, width = form.shape
    known = np.flatnonzero(~np.isnan(observed))
    count = len(known)
    block = np.empty((count, count))
    for i in range(count):
        for j in range(count):
            block[i, j] = covariance[known[i], known[j]]
        block[i, i] += variance[known[i]]
    root = _cholesky(block)
    spread = np.empty((count, width))  # root⁻¹ · covariance of the known with all
    for j in range(width):
        for i in range(count):
            total = covariance[known[i], j]
            for k in range(i):
                total -= root[i, k] * spread[k, j]
            spread[i, j] = total / root[i, i]
    scaled, misfit, weight = np.empty((draws, count)), np.zeros(draws), np.empty(draws)
    for row in range(draws):
        for i in range(count):
            total = observed[known[i]] - form[row, known[i]]
            for k in range(i):
                total -= root[i, k] * scaled[row, k]
            scaled[row, i] = total / root[i, i]
            misfit[row] += scaled[row, i] ** 2
        weight[row] = log_prior[row] - 0.5 * (DEGREES + count) * math.log1p(misfit[row] / DEGREES)
    sums = np.cumsum(np.exp(weight - weight.max()))
    residual = np.empty((width, width))
    for i in range(width):
        for j in range(width):
            residual[i, j] = covariance[i, j]
            for k in range(count):
                residual[i, j] -= spread[k, i] * spread[k, j]
        residual[i, i] += 1e-8
    tail = _cholesky(residual)
    result, row = np.empty((draws, width)), 0
    for draw in range(draws):
        while row < draws - 1 and sums[row] < (draw + 0.5) * sums[-1] / draws:
            row += 1
        scale = math.sqrt(max((DEGREES + misfit[row]) / (DEGREES + count), 1.0))
        for j in range(width):
            total = form[row, j]
            for k in range(count):
                total += scaled[row, k] * spread[k, j]
            for k in range(j + 1):
                total += scale * tail[j, k] * normals[draw, k]
            result[draw, j] = total
    return result


@kernel(F2, F1, I1, F1, F1, F1, F1, F2)
def weigh_failures(
    log_epochs: Floats, runs: Floats, stop_index: Floats, stop_log: Floats, noise: Floats,
    shares: Floats, prior: Floats, uniforms: Floats,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Return the weights of draws by the likelihood of failures, and a draw of the share of normal runs.

    A run that was stopped was either a normal one that is longer than its limit or one that never ends.
    """
    draws, width = log_epochs.shape
    log_weight, normal = np.zeros(draws), np.empty((draws, width))
    success, likelihood = np.empty(len(shares)), np.empty(len(shares))
    for index in range(width):
        stops = stop_log[stop_index == index]
        total = 0.0
        for s in range(len(shares)):
            likelihood[s] = success[s] = prior[s] * shares[s] ** runs[index]
            total += likelihood[s]
        for draw in range(draws):
            if len(stops):
                likelihood[:] = success
                for at in stops:
                    ended = _normal_below((at - log_epochs[draw, index]) / noise[index]) * (1 - 1e-6)
                    for s in range(len(shares)):
                        likelihood[s] *= 1 - ended * shares[s]
                total = likelihood.sum()
                log_weight[draw] += math.log(total)
            below, s = likelihood[0], 0
            while s < len(shares) - 1 and below < uniforms[draw, index] * total:
                s += 1
                below += likelihood[s]
            normal[draw, index] = shares[s]
    weight = np.exp(log_weight - log_weight.max())
    return weight / weight.sum(), normal


@kernel(F2, F2, F1, F1, F1, FLOAT)
def price_batches(
    run_j: Floats, normal: Floats, longest_j: Floats, weight: Floats, runs: Floats, stop: float
) -> tuple[Floats, Floats, int]:
    """Return the cost of a recurrence that begins at each batch size, by draw and its mean; and the best.

    The best batch size is the one that reaches the target at the least cost if it is repeated until then:
    what all its runs cost, those that fail included, for each that reaches the target. Any other run that
    fails is repeated at the best.
    """
    draws, width = run_j.shape
    best, best_j = -1, np.inf
    for index in range(width):
        if runs[index] == 0:
            continue
        share = total = 0.0
        for draw in range(draws):
            share += weight[draw] * normal[draw, index]
            total += weight[draw] * normal[draw, index] * min(run_j[draw, index], longest_j[index])
        share = max(share, 1e-3)
        mean_j = total / share
        price_j = mean_j + min(stop * mean_j, longest_j[index]) * (1 - share) / share
        if price_j < best_j:
            best, best_j = index, price_j
    cost_j, mean = np.empty((draws, width)), np.zeros(width)
    for index in range(width):
        fails_j = min(stop * best_j, longest_j[index]) + best_j
        for draw in range(draws):
            p = normal[draw, index]
            cost = p * min(run_j[draw, index], fails_j) + (1 - p) * fails_j
            cost_j[draw, index] = cost
            mean[index] += weight[draw] * cost
    mean[best] = best_j
    return cost_j, mean, best


@kernel(F2, F2, F1, F2, F1, FLOAT, F1)
def choose_stops(
    run_j: Floats, normal: Floats, noise: Floats, units: Floats, weight: Floats, best_j: float, bounds: Floats
) -> tuple[Floats, Floats]:
    """Return the best stopping cost of each batch size, and the expected cost with a rerun after a stop."""
    draws, width = run_j.shape
    stop_j, cost_j = np.empty(width), np.full(width, np.inf)
    total = np.empty(len(bounds))
    for index in range(width):
        total[:] = 0.0
        for draw in range(draws):
            one_j = run_j[draw, index] * math.exp(noise[index] * units[draw, index])
            p = normal[draw, index]
            for k in range(len(bounds)):
                fails_j = (bounds[k] + 1) * best_j
                ends_j = one_j if one_j <= bounds[k] * best_j else fails_j
                total[k] += weight[draw] * (p * ends_j + (1 - p) * fails_j)
        at = int(np.argmin(total))
        stop_j[index], cost_j[index] = bounds[at] * best_j, total[at]
    return stop_j, cost_j


@kernel(F2, F1, F1, INT, F1)
def expect_improvement(cost_j: Floats, weight: Floats, noise: Floats, best: int, repeats: Floats) -> Floats:
    """Return the expected relative saving of a run after *repeats* (rows) runs at each batch size."""
    draws, width = cost_j.shape
    excess, own = np.empty((draws, width)), np.empty((draws, width))
    mean, own_mean = np.zeros(width), np.zeros(width)
    for draw in range(draws):
        base = math.log(cost_j[draw, best])
        for index in range(width):
            value = math.log(cost_j[draw, index])
            excess[draw, index], own[draw, index] = value - base, value
            mean[index] += weight[draw] * (value - base)
            own_mean[index] += weight[draw] * value
    covariance, variance = np.zeros((width, width)), np.zeros(width)
    for draw in range(draws):
        for j in range(width):
            part = weight[draw] * (own[draw, j] - own_mean[j])
            variance[j] += part * (own[draw, j] - own_mean[j])
            for i in range(width):
                covariance[i, j] += (excess[draw, i] - mean[i]) * part
    saving = np.zeros((len(repeats), width))
    for r in range(len(repeats)):
        for j in range(width):
            scale = math.sqrt(variance[j] + noise[j] ** 2 / repeats[r] + 1e-24)
            for i in range(width):
                value = _positive_part(mean[i], abs(covariance[i, j]) / scale)
                saving[r, j] = max(saving[r, j], value)
    return saving
