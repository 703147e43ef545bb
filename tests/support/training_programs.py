# ruff: noqa: E501  # lines of programs
"""Random small training programs that read Python values in every way, and three ways to run them.

A program is Python source. `run_separately` trains each member alone, `run_array` as an array, compiled or
not; the results must agree, whatever the program reads and changes.
"""

from __future__ import annotations

import itertools
import linecache
import random
import sys
import types
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wattline import fusion
from wattline.errors import NotFusible

MEMBERS = 3
_number = itertools.count()

# Where a value lives: how the program defines it, reads it, and changes it to V.
SOURCES = {
    "global": ("v{i} = {v}", "v{i}", "global v{i}; v{i} = V"),
    "dict": ("d{i} = {{'k': {v}}}", "d{i}['k']", "d{i}['k'] = V"),
    "nested": ("n{i} = {{'a': [0, {{'b': {v}}}]}}", "n{i}['a'][1]['b']", "n{i}['a'][1]['b'] = V"),
    "namespace": ("s{i} = types.SimpleNamespace(v={v})", "s{i}.v", "s{i}.v = V"),
    "object": (
        "class C{i}:\n    def __init__(self): self.v = {v}\no{i} = C{i}()",
        "o{i}.v",
        "o{i}.v = V",
    ),
    "class": ("class K{i}:\n    v = {v}", "K{i}.v", "K{i}.v = V"),
    "inherited": ("class B{i}:\n    v = {v}\nclass I{i}(B{i}): pass\ni{i} = I{i}()", "i{i}.v", "B{i}.v = V"),
    "property": (
        "class P{i}:\n    _v = {v}\n    @property\n    def v(self): return self._v\np{i} = P{i}()",
        "p{i}.v",
        "p{i}._v = V",
    ),
    "slots": (
        "class L{i}:\n    __slots__ = ('v',)\nl{i} = L{i}()\nl{i}.v = {v}",
        "l{i}.v",
        "l{i}.v = V",
    ),
    "frozen": (
        "@dataclasses.dataclass(frozen=True)\nclass F{i}:\n    v: object\nf{i} = F{i}({v})",
        "f{i}.v",
        "global f{i}; f{i} = F{i}(V)",
    ),
    "tuple": ("t{i} = (1, {v})", "t{i}[1]", "global t{i}; t{i} = (1, V)"),
    "closure": (
        "def make{i}(v):\n    def read(): return v\n    def write(new):\n        nonlocal v\n        v = new\n"
        "    return read, write\nread{i}, write{i} = make{i}({v})",
        "read{i}()",
        "write{i}(V)",
    ),
    "default": ("def g{i}(c={{'v': {v}}}): return c['v']", "g{i}()", "g{i}.__defaults__[0]['v'] = V"),
    "partial": (
        "q{i} = functools.partial(lambda v: v, v={v})",
        "q{i}()",
        "global q{i}; q{i} = functools.partial(lambda v: v, v=V)",
    ),
    "method": (
        "class M{i}:\n    def __init__(self): self.w = [{v}]\n    def read(self): return self.w[-1]\nm{i} = M{i}()",
        "m{i}.read()",
        "m{i}.w.append(V)",
    ),
    "getattr": (
        "class G{i}: pass\nh{i} = G{i}()\nh{i}.some_value = {v}",
        "getattr(h{i}, 'some_' + 'value')",
        "h{i}.some_value = V",
    ),
    "environment": (
        "os.environ['FUZZ{i}'] = repr({v})",
        "eval(os.environ['FUZZ{i}'])",
        "os.environ['FUZZ{i}'] = repr(V)",
    ),
    "array": ("a{i} = np.array([0.0, {v}])", "float(a{i}[1])", "a{i}[1] = V"),
}

# How a number enters the loss `total`, given its expression E.
USES = {
    "weight": "total = total + ({E}) * o.pow(2).mean()",
    "shift": "total = total + (o + ({E})).pow(2).mean() * 0.1",
    "power": "total = total + (o.abs() + 0.5).pow(({E}) + 1.0).mean() * 0.1",
    "temperature": "total = total + F.cross_entropy(o / (({E}) + 1.0), y)",
    "smoothing": "total = total + F.cross_entropy(o, y, label_smoothing=min(max(({E}), 0.0), 0.9))",
    "branch": "total = total * 1.5 if ({E}) > 0.45 else total + o.mean() * 0.1",
    "clamp": "total = total + o.clamp(max=({E})).mean() * 0.3",
    "exp": "total = total * math.exp(-({E}))",
    "loop": "for _ in range(int(({E}) * 4)): total = total + o.sum() * 0.01",
    "full": "total = total + (torch.full_like(o, ({E})) * o).mean()",
    "format": "total = total * {{'0': 1.0}}.get(str(int(({E}) * 2)), 2.0)",
    "where": "total = total + torch.where(o > ({E}), o, o * 0.5).mean()",
}

TENSORS = {
    "mask": (
        "k{i} = torch.tensor([1.0, 0.5, 0.25])",
        "total = total + (o * k{i}).mean()",
        "global k{i}; k{i} = torch.tensor([1.0, 0.5, V])",
    ),
    "written": ("w{i} = torch.tensor([1.0, 0.5, 0.25])", "total = total + (o * w{i}).mean()", "w{i}[0] = V"),
    "criterion": (
        "c{i} = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64))",
        "total = total + c{i}(o, y)",
        "c{i}.weight[1] = V + 0.1",
    ),
    "label smoothing": (
        "e{i} = nn.CrossEntropyLoss()",
        "total = total + e{i}(o, y)",
        "e{i}.label_smoothing = min(V, 0.9)",
    ),
    "cache": (
        "class Cache{i}:\n    m = None\n    def get(self, o):\n        if self.m is None: self.m = torch.arange(3.0)\n"
        "        return self.m\nca{i} = Cache{i}()",
        "total = total + (o * ca{i}.get(o)).mean()",
        "ca{i}.m = torch.arange(3.0) * V",
    ),
    "in a list": (
        "tl{i} = [torch.ones(3)]",
        "total = total + (o * tl{i}[0]).mean()",
        "tl{i}[0] = torch.ones(3) * V",
    ),
}

EFFECTS = {
    "counter": ("class N{i}: n = 0\nn{i}c = N{i}()", "n{i}c.n += 1\n    total = total * (1 + 0.1 * n{i}c.n)"),
    "dict counter": (
        "dc{i} = {{'n': 0}}",
        "dc{i}['n'] += 1\n    total = total + 0.1 * dc{i}['n'] * o.mean()",
    ),
    "global counter": ("gc{i} = 0", "global gc{i}\n    gc{i} += 1\n    total = total * (1.0 + 0.05 * gc{i})"),
    "list": ("li{i} = []", "li{i}.append(0.1)\n    total = total + sum(li{i}) * o.mean()"),
    "iterator": ("it{i} = itertools.cycle([0.1, 0.4, 0.9])", "total = total + next(it{i}) * o.mean()"),
}

# Not in the programs of small seeds, some of which were wrong once and are kept as they are.
LATER_EFFECTS = {
    "tensor counter": (
        "tc{i} = torch.zeros((), dtype=torch.float64)",
        "tc{i}.add_(1)\n    total = total * (1.0 + 0.05 * tc{i}.clone())",
    ),
}

DRAWS = {
    "python": "total = total * (1 + random.random())",
    "numpy": "total = total * (1 + np.random.rand())",
    "beta": "lam = np.random.beta(1.0, 1.0)\n    total = total * lam + (1 - lam) * o.mean()",
}

SCHEDULES = ("never", "always", "once", "sometimes", "toggle")


@dataclass
class Program:
    """Source text, and the kinds of things that it reads."""

    source: str
    kinds: tuple[str, ...]

    @property
    def is_guardable(self) -> bool:
        """True if it has no effects and draws no random numbers of Python."""
        return not any(kind.startswith(("effect", "draw")) for kind in self.kinds)

    def load(self) -> types.ModuleType:
        """Return a fresh copy of the program as a module."""
        name = f"program_{next(_number)}"
        module = types.ModuleType(name)
        module.__file__ = f"/programs/{name}.py"
        linecache.cache[module.__file__] = (
            len(self.source),
            None,
            self.source.splitlines(True),
            module.__file__,
        )
        sys.modules[name] = module
        exec(compile(self.source, module.__file__, "exec"), module.__dict__)
        return module


_HEADER = "import dataclasses, functools, itertools, math, os, random, types\nimport numpy as np\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n"


def write_program(seed: int) -> Program:
    """Return the program of a *seed*."""
    rng = random.Random(seed)
    definitions, lines, changes, kinds = [], [], [], []
    for i in range(rng.randint(1, 4)):
        sort = rng.choices(("value", "tensor", "effect", "draw"), (70, 18, 7, 5))[0]
        schedule = rng.choice(SCHEDULES)
        if sort == "value":
            source, use = rng.choice(list(SOURCES)), rng.choice(list(USES))
            definition, read, change = SOURCES[source]
            first = round(rng.random(), 2)
            definitions.append(definition.format(i=i, v=first))
            lines.append(USES[use].replace("{E}", read.format(i=i)).replace("{{", "{").replace("}}", "}"))
            changes.append((schedule, change.format(i=i)))
            kinds.append(f"{source}/{use}/{schedule}")
        elif sort == "tensor":
            name = rng.choice(list(TENSORS))
            definition, line, change = TENSORS[name]
            definitions.append(definition.format(i=i))
            lines.append(line.format(i=i))
            changes.append((schedule, change.format(i=i)))
            kinds.append(f"tensor {name}/{schedule}")
        elif sort == "effect":
            effects = EFFECTS if seed < 1000 else EFFECTS | LATER_EFFECTS
            name = rng.choice(list(effects))
            definition, line = effects[name]
            definitions.append(definition.format(i=i))
            lines.append(line.format(i=i))
            kinds.append(f"effect {name}")
        else:
            name = rng.choice(list(DRAWS))
            lines.append(DRAWS[name])
            kinds.append(f"draw {name}")
    head = [line.split("\n")[0] for line in lines if line.startswith("global ")]
    lines = [line.split("\n    ", 1)[1] if line.startswith("global ") else line for line in lines]
    body = "\n".join(
        f"    {line}" for line in [*head, "total = F.cross_entropy(o, y)", *lines, "return total"]
    )
    blocks = []
    for number, (schedule, change) in enumerate(changes):
        condition = {
            "never": "False",
            "always": "True",
            "once": "step == 4",
            "sometimes": "step % 3 == 2",
            "toggle": "step % 2 == 0",
        }[schedule]
        value = (
            f"{0.2 + 0.1 * number} + 0.05 * step" if schedule != "toggle" else "0.3 + 0.4 * (step % 4 == 0)"
        )
        blocks.append(
            f"def change{number}(step):\n    if not ({condition}): return\n    V = {value}\n    {change}\n"
        )
        if change.startswith("global "):
            names, statement = change.split("; ", 1)
            blocks[-1] = (
                f"def change{number}(step):\n    {names}\n    if not ({condition}): return\n    V = {value}\n    {statement}\n"
            )
    calls = "\n".join(f"    change{n}(step)" for n in range(len(changes))) or "    pass"
    source = (
        _HEADER
        + "\n".join(definitions)
        + "\n\n\ndef loss(o, y):\n"
        + body
        + "\n\n\n"
        + "\n".join(blocks)
        + f"\n\ndef between(step):\n{calls}\n"
    )
    return Program(source, tuple(kinds))


def build_models(seed: int) -> list[nn.Module]:
    """Return the members of an array."""
    torch.manual_seed(seed)
    return [nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double() for _ in range(MEMBERS)]


def build_batches(seed: int, steps: int) -> list[tuple[Tensor, Tensor]]:
    """Return the batches of all steps."""
    torch.manual_seed(seed + 1)
    return [(torch.randn(5, 4, dtype=torch.float64), torch.randint(0, 3, (5,))) for _ in range(steps)]


def _seed_host() -> None:
    random.seed(5)
    np.random.seed(5)


def run_separately(program: Program, seed: int, steps: int) -> tuple[Tensor, list[Tensor]]:
    """Train each member alone, with its own copy of the program; return losses [steps, B] and weights."""
    models, batches = build_models(seed), build_batches(seed, steps)
    copies = [program.load() for _ in models]
    optimisers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in models]
    losses = torch.zeros(steps, MEMBERS, dtype=torch.float64)
    _seed_host()
    for step, (x, y) in enumerate(batches):
        for copy in copies:
            copy.between(step)
        for member, (model, optimiser) in enumerate(zip(models, optimisers, strict=True)):
            loss = copies[member].loss(model(x), y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses[step, member] = loss.detach()
    return losses, [torch.cat([p.detach().flatten() for p in m.parameters()]) for m in models]


def compile_own_step(array: Any, program: types.ModuleType, optimiser: Any) -> Any:
    """Return a step of the user's own, with the program as its loss, compiled by `fusion.compile`."""

    @fusion.compile(backend="graph")
    def step(x: Tensor, y: Tensor) -> Tensor:
        losses = array.loss(program.loss, array(x), y)
        optimiser.zero_grad()
        losses.sum().backward()
        optimiser.step()
        return losses.detach()

    return step


def run_array(
    program: Program, seed: int, steps: int, compile: bool | str
) -> tuple[Tensor, list[Tensor], Any, list[str]]:
    """Train the members as an array; return losses, weights, the step and the warnings."""
    array, batches = fusion.fuse(build_models(seed)), build_batches(seed, steps)
    copy = program.load()
    optimiser = fusion.SGD(array, lr=0.05)
    step: Any
    if compile == "function":
        step = compile_own_step(array, copy, optimiser)
    else:
        step = fusion.train_step(array, copy.loss, optimiser, compile=compile)
    losses = []
    _seed_host()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number, (x, y) in enumerate(batches):
            copy.between(number)
            losses.append(step(x, y))
    weights = [torch.cat([p.detach().flatten() for p in m.parameters()]) for m in array.split()]
    return torch.stack(losses), weights, step, [str(w.message) for w in caught]


@dataclass
class Outcome:
    """Result of one program: *difference* is empty if compiled, uncompiled and separate training agree."""

    program: Program
    difference: str
    is_compiled: bool
    is_refused: bool
    warnings: list[str]


def compare_ways(seed: int, steps: int = 7, backend: bool | str = "graph") -> Outcome:
    """Run the program of *seed* in three ways, *backend* being the compiled one, and compare.

    "function" stands for `fusion.compile` of a step of the user's own.
    """
    program = write_program(seed)
    losses, weights = run_separately(program, seed, steps)
    difference, messages, is_compiled = "", [], False
    for compile in (False, backend):
        try:
            ours, own_weights, step, messages = run_array(program, seed, steps, compile)
        except NotFusible as error:  # refused, not silently different
            return Outcome(program, difference, False, True, [str(error)])
        is_compiled = step.is_compiled if compile == "function" else step.way.compiled
        same = [
            torch.allclose(a, b, 1e-5, 1e-6)
            for a, b in zip([losses, *weights], [ours, *own_weights], strict=True)
        ]
        if not all(same):
            gaps = (losses - ours).abs().amax(1).tolist()
            difference += f"compile={compile}: losses differ by {gaps}, warnings {messages}; "
    return Outcome(program, difference, is_compiled, False, messages)
