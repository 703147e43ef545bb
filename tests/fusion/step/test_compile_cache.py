"""The compile cache: equal steps are compiled once, and never taken for each other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from wattline import fusion
from wattline.fusion.step.compile_cache import find_cache_folder
from wattline.fusion.step.fingerprint import NotPortable, describe
from wattline.fusion.step.traced import CompiledGraph

SCALE = 1.0
SCRIPT = """
import sys, torch, torch.nn.functional as F
from torch import nn
from wattline import fusion
torch.manual_seed(0)
array = fusion.fuse([nn.Linear(4, 3) for _ in range(2)])
optimiser = fusion.SGD(array, lr=[0.1, 0.2])
step = fusion.train_step(array, F.cross_entropy, optimiser)
@fusion.compile
def own(x, y):
    losses = array.loss(F.cross_entropy, array(x), y)
    losses.sum().backward()
    optimiser.step()
    optimiser.zero_grad()
    return {"losses": losses, "name": "own"}
x, y = torch.randn(5, 4), torch.randint(0, 3, (5,))
for call in (step, own):
    for _ in range(5):
        out = call(x, y)
print(step.cache_hits, step.cache_misses, own.cache_hits, own.cache_misses)
print(out["name"], [round(v, 5) for v in out["losses"].tolist()])
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WATTLINE_CACHE_DIR", str(tmp_path))
    return tmp_path / "fusion"


def scaled_loss(out: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(out, target) * SCALE


def make_step(
    loss: Callable[..., Tensor] = scaled_loss, seed: int = 0, width: int = 2, **options: Any
) -> fusion.Step:
    torch.manual_seed(seed)
    array = fusion.fuse([nn.Linear(4, 3) for _ in range(width)])
    return fusion.train_step(array, loss, fusion.SGD(array, lr=0.1, **options))


def fingerprint_of(step: fusion.Step, rows: int = 5) -> str:
    """Return the name of a step in the cache, without compiling it."""
    x, y = torch.randn(rows, 4), torch.zeros(rows, dtype=torch.int64)
    found: list[str] = []
    tracer = step._tracer

    def note(guards: Any, *rest: Any) -> None:
        name = type(tracer)._compute_fingerprint(tracer, guards, *rest)
        assert name is not None
        found.append(name)

    tracer._backend = "inductor"
    step(x, y)
    tracer._compute_fingerprint = note  # type: ignore[method-assign, assignment]
    tracer._compile = _compile_as_graph()  # type: ignore[method-assign]
    step(x, y)
    return found[-1]


def _compile_as_graph() -> Any:
    def compile_graph(graph: Any, flat: Any, captured: Any, *_: Any) -> CompiledGraph:
        return CompiledGraph(graph, captured, returns_tensor=graph.meta["returns_tensor"])

    return compile_graph


@pytest.mark.slow
def test_equal_steps_have_equal_fingerprints(cache: Path) -> None:
    assert fingerprint_of(make_step()) == fingerprint_of(make_step(seed=3))


@pytest.mark.slow
def test_other_steps_have_other_fingerprints(cache: Path) -> None:
    names = [
        fingerprint_of(make_step()),
        fingerprint_of(make_step(width=3)),
        fingerprint_of(make_step(), rows=6),
        fingerprint_of(make_step(momentum=0.9)),
        fingerprint_of(make_step(loss=lambda out, y: F.cross_entropy(out, y) * SCALE)),
        fingerprint_of(make_step(loss=nn.CrossEntropyLoss(label_smoothing=0.1))),
        fingerprint_of(make_step(loss=nn.CrossEntropyLoss(label_smoothing=0.2))),
    ]
    assert len({*names}) == len(names)


@pytest.mark.slow
def test_a_changed_global_value_changes_the_fingerprint(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint_of(make_step())
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 2.0)
    assert fingerprint_of(make_step()) != before


def test_values_without_a_description_are_not_stored() -> None:
    assert describe({"a": (1, 2.0)}) == describe({"a": (1, 2.0)})
    assert describe(frozenset("abc")) == describe(frozenset("cba"))
    with pytest.raises(NotPortable):
        describe([1, object()])


def test_the_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATTLINE_CACHE_DIR", "")
    assert find_cache_folder() is None
    monkeypatch.delenv("WATTLINE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find_cache_folder() == tmp_path / "wattline" / "fusion"


def run_script(tmp_path: Path, seed: int, folder: str | None = None) -> list[str]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "WATTLINE_CACHE_DIR": str(tmp_path / "cache") if folder is None else folder,
        "PYTHONHASHSEED": str(seed),
        "PYTHONWARNINGS": "error::UserWarning",
    }
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    first, second = run_script(tmp_path, 1), run_script(tmp_path, 2)
    assert first[0] == "0 1 0 1"
    assert second[0] == "1 0 1 0"
    assert second[1] == first[1]


@pytest.mark.slow
def test_damaged_entries_are_compiled_anew(cache: Path) -> None:
    x, y = torch.randn(5, 4), torch.zeros(5, dtype=torch.int64)

    def train() -> tuple[fusion.Step, Tensor]:
        step = make_step()
        return step, torch.stack([step(x, y) for _ in range(4)])

    first, expected = train()
    (entry,) = cache.iterdir()
    content = (entry / "entry").read_bytes()
    (entry / "entry").write_bytes(content[:-10])
    with pytest.warns(fusion.FusionWarning, match="damaged entry.*checksum is wrong.*compiled anew"):
        second, losses = train()
    assert (first.cache_misses, second.cache_misses, second.cache_hits) == (1, 1, 0)
    torch.testing.assert_close(losses, expected)
    third, losses = train()
    assert (third.cache_misses, third.cache_hits) == (0, 1)
    torch.testing.assert_close(losses, expected)


@pytest.mark.slow
def test_without_a_writable_folder_steps_are_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATTLINE_CACHE_DIR", "/dev/null/nowhere")
    step = make_step()
    for _ in range(3):
        step(torch.randn(5, 4), torch.zeros(5, dtype=torch.int64))
    assert (step.cache_misses, step.cache_hits) == (1, 0)
    assert step.way.compiled
