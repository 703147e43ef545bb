"""Compiled versions of a step: one for each form of its tensors and each set of values that it has read."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.fx import GraphModule

from wattline.fusion.lowering.target import lowered_for_compiler
from wattline.fusion.step.captured import CapturedValues
from wattline.fusion.step.compile_cache import discard_entry, find_cache_folder, read_entry, write_entry
from wattline.fusion.step.executed_code import ExecutedCode, record_code
from wattline.fusion.step.fingerprint import NotPortable, compute_fingerprint
from wattline.fusion.step.guards import Guards
from wattline.fusion.step.places import NotGuardable, Place, Root
from wattline.fusion.step.replayed_graph import ReplayedGraph
from wattline.fusion.step.traced import (
    CompiledGraph,
    MemberStep,
    StepFunction,
    TracingError,
    compile_graph,
    trace_step,
)

MAX_VERSIONS = 8  # of one step for tensors of one form; a value that changes more often is not compiled


class CacheCounters:
    """Counts of versions loaded from the compile cache and of compiled ones."""

    _tracer: Tracer

    @property
    def cache_hits(self) -> int:
        """Number of compiled versions that were loaded from the compile cache."""
        return self._tracer.cache_hits

    @property
    def cache_misses(self) -> int:
        """Number of versions that were compiled."""
        return self._tracer.cache_misses


class StoredExtra(Protocol):
    """A value that is stored in the compile cache with a step."""

    def store(self) -> Any:
        """Return a value that can be pickled."""

    def restore(self, stored: Any) -> None:
        """Continue from what `store` has returned."""


@dataclass
class _Version:
    """A compiled step and the values that it was traced with."""

    guards: Guards
    call: CompiledGraph


class Tracer:
    """Traces a step, and traces it anew when a value that it has read is another one.

    *roots* are variables that a step reads besides those of its code. A number that has changed once becomes
    an input of the next version, if the step can be traced with it.
    """

    def __init__(self, roots: Iterable[Root], dtype: torch.dtype, backend: str) -> None:
        self.executed = ExecutedCode()
        self._roots = list(roots)
        self._dtype = dtype
        self._backend = backend
        self._versions: dict[Hashable, list[_Version]] = {}
        self._inputs: set[Place] = set()
        self._constants: set[Place] = set()
        self.cache_hits = 0
        self.cache_misses = 0

    def without_compiler(self) -> Tracer:
        """Return a tracer of the same step that has no versions yet, and replays them."""
        other = Tracer(self._roots, self._dtype, "graph")
        other.executed, other.cache_hits, other.cache_misses = (
            self.executed,
            self.cache_hits,
            self.cache_misses,
        )
        return other

    @property
    def count(self) -> int:
        """Number of compiled versions."""
        return sum(map(len, self._versions.values()))

    def clear(self) -> None:
        """Forget all versions."""
        self._versions.clear()

    def record(self) -> AbstractContextManager[None]:
        """Add the code that runs inside the `with` block to what may be read."""
        return record_code(self.executed)

    def lowering(self) -> AbstractContextManager[None]:
        """Return a context in which operators are computed and random numbers drawn as in traced steps."""
        return lowered_for_compiler() if self._backend == "inductor" else nullcontext()

    def build_guards(self, known: Iterable[Tensor] = ()) -> Guards:
        """Return guards of the present values; raise `TracingError` if some cannot be compared."""
        if impure := self.executed.list_impure():
            raise TracingError(f"it calls {impure[0]}, with another result in every step")
        try:
            return Guards(self.executed, self._roots, known, self._inputs)
        except NotGuardable as error:
            raise TracingError(f"{error}, which cannot be compared before each step") from None

    def finds_generators(self, known: Iterable[Tensor]) -> bool:
        """Return whether the code may read random number generators of Python or NumPy from variables."""
        try:
            return bool(self.build_guards(known).generators)
        except TracingError:  # announced when the step is traced
            return False

    def find_version(self, key: Hashable) -> CompiledGraph | None:
        """Return the version for tensors of the form *key* and the present values; None if there is none."""
        versions = self._versions.get(key, ())
        for at, version in enumerate(versions):
            if version.guards.find_changed() is None:
                if at:
                    versions.insert(0, versions.pop(at))  # type: ignore[union-attr]
                return version.call
        return None

    def add_version(
        self,
        key: Hashable,
        step: StepFunction,
        flat: Sequence[Tensor],
        known: Sequence[Tensor],
        form: Any,
        extra: StoredExtra | None = None,
        kept_count: int = 0,
    ) -> CompiledGraph:
        """Trace and compile *step* for the tensors *flat* and the present values, or load it from the cache.

        Raise `TracingError` if that is impossible. *known* tensors are among *flat*; the first *kept_count*
        of *flat* are mostly the same in all calls. *form* is what the trace depends on besides tensors and
        values that code reads; *extra* is stored with the compiled step. Without a compiler, the update of a
        `MemberStep` is not traced: the optimiser's own is faster.
        """
        split = step if isinstance(step, MemberStep) and self._backend == "graph" else None
        traced = step if split is None else split.compute
        versions = self._versions.setdefault(key, [])
        if versions:
            self._note_changed(versions)
        while True:
            guards = self.build_guards(known)
            tensors = guards.current_tensors()
            numbers = sorted(self._inputs & guards.numbers, key=str)
            captured = CapturedValues(tuple(guards.tensors.values()), tuple(numbers), self._dtype)
            fingerprint = self._compute_fingerprint(guards, numbers, flat, form)
            if fingerprint is not None and (call := self._load(fingerprint, captured, extra)) is not None:
                versions.insert(0, _Version(guards, call))
                return call
            new = ExecutedCode()
            try:
                with self.lowering():
                    graph, captured = trace_step(traced, flat, captured, new)
            except (TracingError, NotGuardable) as why:
                if not self._inputs:
                    raise TracingError(str(why)) from None
                self._constants |= self._inputs
                self._inputs.clear()
                continue
            if (effect := guards.find_effect(tensors)) is not None:
                raise TracingError(f"it {effect}")
            if new.codes.keys() <= self.executed.codes.keys() and new.impure <= self.executed.impure:
                break
            self.executed.codes.update(new.codes)  # a branch that no step has taken so far
            self.executed.impure |= new.impure
        if self._backend == "graph":
            call = CompiledGraph(
                ReplayedGraph(graph, kept_count),
                captured,
                returns_tensor=graph.meta["returns_tensor"],
                finish=None if split is None else split.update,
            )
        else:
            call = self._compile(graph, flat, captured, fingerprint, extra)
        versions.insert(0, _Version(guards, call))
        return call

    def _compute_fingerprint(
        self, guards: Guards, numbers: Sequence[Place], flat: Sequence[Tensor], form: Any
    ) -> str | None:
        """Return the name of the step in the compile cache; None if it is not stored."""
        if self._backend == "graph" or find_cache_folder() is None:
            return None
        form = (form, str(self._dtype))
        try:
            return compute_fingerprint(guards, self.executed, [str(n) for n in numbers], flat, form)
        except NotPortable:
            return None

    def _load(
        self, fingerprint: str, captured: CapturedValues, extra: StoredExtra | None
    ) -> CompiledGraph | None:
        """Return the step from the cache; None if it is not there."""
        entry = read_entry(fingerprint)
        if entry is None:
            return None
        try:
            used = captured.find(entry.tensors, entry.numbers)
            compiled = entry.load()
            if extra is not None:
                extra.restore(entry.extra)
        except Exception as error:  # loading runs code that was generated
            discard_entry(fingerprint, f"{type(error).__name__}: {error}")
            return None
        self.cache_hits += 1
        return CompiledGraph(
            compiled, used, returns_tensor=entry.returns_tensor, fingerprint=fingerprint, is_cached=True
        )

    def _compile(
        self,
        graph: GraphModule,
        flat: Sequence[Tensor],
        captured: CapturedValues,
        fingerprint: str | None,
        extra: StoredExtra | None,
    ) -> CompiledGraph:
        returns_tensor = graph.meta["returns_tensor"]
        self.cache_misses += 1
        code = compile_graph(graph, flat, captured)
        tensors, numbers = ([str(place) for place in own] for own in (captured.tensors, captured.numbers))
        if fingerprint is not None and len({*tensors}) == len(tensors):
            stored = None if extra is None else extra.store()
            write_entry(fingerprint, code, tensors, numbers, returns_tensor=returns_tensor, extra=stored)
        return CompiledGraph(code.call, captured, returns_tensor=returns_tensor, fingerprint=fingerprint)

    def _note_changed(self, versions: list[_Version]) -> None:
        """Make numbers that have changed inputs; raise `TracingError` if there are too many versions."""
        latest = versions[0].guards
        if not self.make_input(latest) and len(versions) >= MAX_VERSIONS:
            raise TracingError(f"{latest.find_changed()} has another value in nearly every step")

    def make_input(self, guards: Guards) -> bool:
        """Make the number an input that has changed since *guards* were built; return whether it is one."""
        changed = guards.find_changed()
        is_number = changed is not None and changed in guards.numbers and changed not in self._constants
        if is_number and changed is not None:
            self._inputs.add(changed)
        return is_number
