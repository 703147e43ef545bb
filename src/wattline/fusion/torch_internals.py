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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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

from torch import _weight_norm as weight_norm_operator  # noqa: E402
from torch._C import _functorch  # noqa: E402
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
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor  # noqa: E402
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx  # noqa: E402
from torch.nn.modules.batchnorm import _BatchNorm as BatchNormBase  # noqa: E402
from torch.nn.modules.batchnorm import _NormBase as NormBase  # noqa: E402
from torch.nn.modules.dropout import _DropoutNd as DropoutBase  # noqa: E402
from torch.nn.modules.instancenorm import _InstanceNorm as InstanceNormBase  # noqa: E402
from torch.utils._pytree import (  # noqa: E402
    TreeSpec,
    register_dataclass,
    tree_flatten,
    tree_map,
    tree_map_only,
    tree_unflatten,
)

if TYPE_CHECKING:
    from torch.fx import GraphModule

FAKE_TENSOR_LOG = "torch._subclasses.fake_tensor"
"""Name of the log in which PyTorch reports errors of tracing, also those that are handled."""

set_vmap_warnings: Callable[[bool], None] = getattr(_functorch, "_set_vmap_fallback_warning_enabled")  # noqa: B009


def current_interpreter() -> Any:
    """Return the innermost vmap: its level, its size, and a context in which it is left."""
    return retrieve_current_functorch_interpreter()


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
    "TransformType",
    "TreeSpec",
    "add_batch_dim",
    "check_torch_version",
    "compile_graph",
    "current_interpreter",
    "get_batch_dim",
    "get_interpreter_stack",
    "get_level",
    "get_proxy_mode",
    "get_unwrapped",
    "is_batchedtensor",
    "load_compiled_code",
    "make_fx",
    "read_compiler_settings",
    "register_dataclass",
    "run_batched",
    "set_vmap_warnings",
    "tree_flatten",
    "tree_map",
    "tree_map_only",
    "tree_unflatten",
    "weight_norm_operator",
]
