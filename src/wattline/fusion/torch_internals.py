"""Parts of PyTorch without a public or stable name, and the versions that they were tested with.

Every other file of `wattline.fusion` imports them from here, so that a new PyTorch is checked in one place.
Importing this file raises `ConfigError` with an untested version, before anything private is used. Private
attributes of public objects cannot be imported and stay where they are used: `_parameters`, `_buffers`,
`_modules`, the hooks and `_flat_weights` of modules, `_version` of tensors.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from wattline.errors import ConfigError

TESTED = ("2.13",)
"""Versions of PyTorch, major and minor, that the tests pass with."""
UNTESTED_TORCH = "WATTLINE_UNTESTED_TORCH"


def check_torch_version() -> None:
    """Raise `ConfigError` unless the installed PyTorch is a tested one.

    With WATTLINE_UNTESTED_TORCH=1 in the environment it is only a warning.
    """
    version = str(torch.__version__)
    if ".".join(version.partition("+")[0].split(".")[:2]) in TESTED:
        return
    text = f"PyTorch {version} is installed, but wattline.fusion is only tested with {', '.join(TESTED)}"
    if os.environ.get(UNTESTED_TORCH) != "1":
        raise ConfigError(
            text, f"pip install torch=={TESTED[-1]}.0, or set {UNTESTED_TORCH}=1 to use it nevertheless"
        )
    warnings.warn(text, stacklevel=2)


check_torch_version()

from torch import _fused_adam_ as fused_adam  # noqa: E402
from torch import _fused_adamw_ as fused_adamw  # noqa: E402
from torch import _log_softmax as log_softmax_operator  # noqa: E402
from torch import _weight_norm as weight_norm_operator  # noqa: E402
from torch._C import _autograd, _functorch  # noqa: E402
from torch._C._functorch import (  # noqa: E402
    TransformType,
    get_interpreter_stack,
    get_unwrapped,
    is_batchedtensor,
)
from torch._C._functorch import _add_batch_dim as add_batch_dim  # noqa: E402
from torch._C._functorch import maybe_get_bdim as get_batch_dim  # noqa: E402
from torch._C._functorch import maybe_get_level as get_level  # noqa: E402
from torch._functorch.predispatch import lazy_load_decompositions  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor  # noqa: E402
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx  # noqa: E402
from torch.nn.modules.batchnorm import _BatchNorm as BatchNormBase  # noqa: E402
from torch.nn.modules.batchnorm import _NormBase as NormBase  # noqa: E402
from torch.nn.modules.dropout import _DropoutNd as DropoutBase  # noqa: E402
from torch.nn.modules.instancenorm import _InstanceNorm as InstanceNormBase  # noqa: E402
from torch.overrides import _get_current_function_mode_stack as current_function_modes  # noqa: E402
from torch.utils import checkpoint as checkpoint_module  # noqa: E402
from torch.utils._pytree import (  # noqa: E402
    TreeSpec,
    register_dataclass,
    tree_flatten,
    tree_map,
    tree_map_only,
    tree_unflatten,
)
from torch.utils.checkpoint import (  # noqa: E402
    _checkpoint_without_reentrant_generator as torch_checkpoint_generator,
)
from torch.utils.checkpoint import _StopRecomputationError as StopRecomputation  # noqa: E402
from torch.utils.checkpoint import noop_context_fn  # noqa: E402

if TYPE_CHECKING:
    from torch.fx import GraphModule

FAKE_TENSOR_LOG = "torch._subclasses.fake_tensor"
"""Name of the log in which PyTorch reports errors of tracing, also those that are handled."""

set_vmap_warnings: Callable[[bool], None] = getattr(_functorch, "_set_vmap_fallback_warning_enabled")  # noqa: B009


class VmapLayer(NamedTuple):
    """A vmap that was left: its nesting level, its number of rows, and PyTorch's record of it."""

    level: int
    size: int
    record: Any


def find_vmap() -> VmapLayer | None:
    """Return the innermost vmap; None outside of it."""
    layer = _functorch.peek_interpreter_stack()
    if layer is None:
        return None
    return VmapLayer(layer.level(), _functorch.CVmapInterpreterPtr(layer).batchSize(), None)


def pop_vmap() -> VmapLayer:
    """Leave the innermost vmap."""
    layer = _functorch.peek_interpreter_stack()
    size = _functorch.CVmapInterpreterPtr(layer).batchSize()
    return VmapLayer(layer.level(), size, _functorch.pop_dynamic_layer_stack())


def push_vmap(layer: VmapLayer) -> None:
    """Enter a vmap again that was left."""
    _functorch.push_dynamic_layer_stack(layer.record)


def run_batched(
    function: Callable[..., Sequence[Any]], tensors: Sequence[Any], is_batched: Sequence[bool], size: int
) -> list[Any]:
    """Return the tensors of `function(*tensors)` under vmap, with a leading dimension of *size*.

    Tensors that are *is_batched* have that dimension too. Draws differ along it. `torch.vmap` does the same,
    but takes apart and rebuilds nested arguments, which costs more than the operators of a small model.
    """
    lazy_load_decompositions()
    level = _functorch._vmap_increment_nesting(size, "different")
    try:
        inputs = [
            add_batch_dim(tensor, 0, level) if own else tensor
            for tensor, own in zip(tensors, is_batched, strict=True)
        ]
        outs = function(*inputs)
        return [_functorch._remove_batch_dim(out, level, size, 0) for out in outs]
    finally:
        _functorch._vmap_decrement_nesting()


@contextmanager
def entered_vmap(size: int) -> Iterator[int]:
    """Enter vmap for the `with` block and return its level; tensors of an earlier vmap of that level fit."""
    lazy_load_decompositions()
    set_vmap_warnings(False)
    level = _functorch._vmap_increment_nesting(size, "different")
    try:
        yield level
    finally:
        _functorch._vmap_decrement_nesting()
        set_vmap_warnings(True)


@contextmanager
def forbidden_saved_tensor_hooks(message: str) -> Iterator[None]:
    """Raise `RuntimeError` with *message* where code inside the `with` block sets hooks of saved tensors.

    Hooks from outside, as of a checkpoint around an array, keep working, and then none are refused.
    """
    if _autograd._top_saved_tensors_default_hooks(False) is not None:
        yield
        return
    before = _autograd._saved_tensors_hooks_get_disabled_error_message()
    _autograd._saved_tensors_hooks_disable(message, False)
    try:
        yield
    finally:
        _restore_hook_message(before)


@contextmanager
def allowed_saved_tensor_hooks() -> Iterator[None]:
    """Let code inside the `with` block set hooks of saved tensors."""
    before = _autograd._saved_tensors_hooks_get_disabled_error_message()
    _autograd._saved_tensors_hooks_enable()
    try:
        yield
    finally:
        _restore_hook_message(before)


def _restore_hook_message(message: str | None) -> None:
    if message is None:
        _autograd._saved_tensors_hooks_enable()
    else:
        _autograd._saved_tensors_hooks_disable(message, False)


_OPTIONS = {"fallback_random": True}
"""Random numbers are those without compiling: seeds have the same effect, and results can be compared."""


@dataclass(frozen=True)
class CompiledCode:
    """A graph compiled by Inductor: a function, and what is needed to load it in another process.

    *artifact* is None if it cannot be stored. *kernels* are the files of shared libraries by the digest of
    their source.
    """

    call: Callable[..., Any]
    artifact: bytes | None
    kernels: dict[str, str]


def compile_graph(graph: GraphModule, inputs: list[Any]) -> CompiledCode:
    """Return *graph* compiled by Inductor for *inputs*."""
    from torch import _inductor  # importing it takes a second
    from torch._inductor.async_compile import AsyncCompile

    kernels: dict[str, Any] = {}
    original = AsyncCompile.cpp_pybinding

    def compile_kernel(self: Any, argument_types: list[str], source: str) -> Any:
        kernel = kernels[_digest_kernel(argument_types, source)] = original(self, argument_types, source)
        return kernel

    setattr(AsyncCompile, "cpp_pybinding", compile_kernel)  # noqa: B010
    try:
        compiled = _inductor.standalone_compile(
            graph,
            inputs,
            dynamic_shapes="from_example_inputs",
            options={"config_patches": _OPTIONS},
            aot=True,
        )
    except RuntimeError as error:
        if "serialize" not in str(error):
            raise
        return CompiledCode(_inductor.compile(graph, inputs, options=dict(_OPTIONS)), None, {})
    finally:
        setattr(AsyncCompile, "cpp_pybinding", original)  # noqa: B010
    try:
        artifact: bytes | None = compiled.serialize()  # type: ignore[attr-defined]
        files = {digest: _find_kernel_file(kernel) for digest, kernel in kernels.items()}
    except Exception:  # pickling raises errors of many types
        artifact, files = None, {}
    return CompiledCode(compiled, artifact, files)


def load_compiled_code(artifact: bytes, kernels: dict[str, str]) -> Callable[..., Any]:
    """Return the function of a stored `CompiledCode`; *kernels* are the files of its shared libraries.

    Inductor itself would look for a C++ compiler and try its options for a second, even if all is compiled.
    """
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codecache import CppPythonBindingsCodeCache
    from torch._inductor.standalone_compile import AOTCompiledArtifact

    original = AsyncCompile.cpp_pybinding

    def load_kernel(self: Any, argument_types: list[str], source: str) -> Any:
        digest = _digest_kernel(argument_types, source)
        return CppPythonBindingsCodeCache._load_library(kernels[digest], digest).kernel

    setattr(AsyncCompile, "cpp_pybinding", load_kernel)  # noqa: B010
    try:
        return AOTCompiledArtifact.deserialize(artifact)
    finally:
        setattr(AsyncCompile, "cpp_pybinding", original)  # noqa: B010


def read_compiler_settings() -> str:
    """Return the settings of Inductor as a text."""
    from torch._inductor import config

    return repr(sorted((name, repr(value)) for name, value in config.save_config_portable().items()))


def _digest_kernel(argument_types: Sequence[str], source: str) -> str:
    return hashlib.sha256(repr((argument_types, source)).encode()).hexdigest()


def _find_kernel_file(kernel: Any) -> str:
    function = kernel.result() if hasattr(kernel, "result") else kernel
    return str(function.__self__.__file__)


__all__ = [
    "FAKE_TENSOR_LOG",
    "TESTED",
    "BatchNormBase",
    "CompiledCode",
    "DropoutBase",
    "FakeTensor",
    "InstanceNormBase",
    "NormBase",
    "StopRecomputation",
    "TransformType",
    "TreeSpec",
    "VmapLayer",
    "add_batch_dim",
    "allowed_saved_tensor_hooks",
    "check_torch_version",
    "checkpoint_module",
    "compile_graph",
    "current_function_modes",
    "entered_vmap",
    "find_vmap",
    "forbidden_saved_tensor_hooks",
    "fused_adam",
    "fused_adamw",
    "get_batch_dim",
    "get_interpreter_stack",
    "get_level",
    "get_proxy_mode",
    "get_unwrapped",
    "is_batchedtensor",
    "load_compiled_code",
    "log_softmax_operator",
    "make_fx",
    "noop_context_fn",
    "pop_vmap",
    "push_vmap",
    "read_compiler_settings",
    "register_dataclass",
    "run_batched",
    "set_vmap_warnings",
    "torch_checkpoint_generator",
    "tree_flatten",
    "tree_map",
    "tree_map_only",
    "tree_unflatten",
    "weight_norm_operator",
]
