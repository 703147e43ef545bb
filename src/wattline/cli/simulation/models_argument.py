"""What jobs do, and what is believed of them: from `--models` to models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wattline.core.jobs import Jobs
from wattline.errors import ConfigError
from wattline.models.library import library, load_models
from wattline.models.model_assignment import draw_models
from wattline.models.trace_model import Asked
from wattline.models.workload_models import Measured
from wattline.papers.synergy_speedups import Published


def read_beliefs(text: str | None, span_penalty: float) -> Asked | Measured | Published:
    """The models that *text* names: `library`, `synergy`, or a file of `fit --out`; None: as asked."""
    asked = Asked(span_penalty=span_penalty)
    if text is None:
        return asked
    if text == "synergy":
        return Published(asked)
    return replace(library() if text == "library" else load_models(text), otherwise=asked)


def with_drawn(jobs: Jobs, models: Asked | Measured | Published, kinds: Sequence[str], seed: int) -> Jobs:
    """*jobs*, those of unknown models with one drawn at random."""
    if not isinstance(models, Measured):
        raise ConfigError("--draw-models needs models to draw from", hint="--models library")
    return draw_models(jobs, models, kinds, seed)
