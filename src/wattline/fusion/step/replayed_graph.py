"""`ReplayedGraph`: run a traced step operator by operator, without work that does not depend on the call."""

from __future__ import annotations

from operator import getitem, is_
from typing import Any

import torch
from torch import Tensor, fx

from wattline.fusion.torch_internals import log_softmax_operator

aten = torch.ops.aten

# Functions and methods that take the same arguments as an operator, and are called faster.
_BINDINGS: dict[Any, Any] = {
    aten._log_softmax.default: log_softmax_operator,
    aten.add.Tensor: torch.add,
    aten.addmm.default: torch.addmm,
    aten.baddbmm.default: torch.baddbmm,
    aten.bmm.default: torch.bmm,
    aten.clone.default: torch.clone,
    aten.div.Tensor: torch.div,
    aten.exp.default: torch.exp,
    aten.expand.default: "expand",
    aten.mm.default: torch.mm,
    aten.mul.Tensor: torch.mul,
    aten.ne.Scalar: torch.ne,
    aten.neg.default: torch.neg,
    aten.permute.default: torch.permute,
    aten.relu.default: torch.relu,
    aten.sigmoid.default: torch.sigmoid,
    aten.squeeze.dim: torch.squeeze,
    aten.sub.Tensor: torch.sub,
    aten.sum.default: torch.sum,
    aten.sum.dim_IntList: torch.sum,
    aten.t.default: torch.t,
    aten.tanh.default: torch.tanh,
    aten.transpose.int: torch.transpose,
    aten.unsqueeze.default: torch.unsqueeze,
    aten.view.default: "view",
}
_SAME = (aten.detach.default, aten.alias.default)  # without gradients, the tensor itself


class ReplayedGraph:
    """The operators of *graph*, called in order.

    Views of the first *kept_count* inputs are made again only when one of them is another tensor, and
    constants are made once.
    """

    def __init__(self, graph: fx.GraphModule, kept_count: int) -> None:
        _remove_identities(graph.graph)
        self._kept_count = kept_count
        self._kept: tuple[Any, ...] = ()
        self._views: tuple[Any, ...] = ()
        self._make_views, self._run = _split(graph, kept_count)

    def __call__(self, *tensors: Any) -> Any:
        """Return the outputs of the graph."""
        kept = tensors[: self._kept_count]
        if not self._kept or not all(map(is_, kept, self._kept)):
            self._kept, self._views = kept, tuple(self._make_views(*kept))
        return self._run(*self._views, *tensors[self._kept_count :])


def _remove_identities(graph: fx.Graph) -> None:
    """Replace operators that return their argument, or a view of the same shape, by the argument."""
    for node in list(graph.nodes):
        if node.op == "call_function" and _is_identity(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _is_identity(node: fx.Node) -> bool:
    if node.target in _SAME:
        return True
    if node.target is aten.permute.default:
        return list(node.args[1]) == list(range(len(node.args[1])))  # type: ignore[arg-type]
    if node.target not in (aten.view.default, aten.expand.default):
        return False
    source = node.args[0]
    before = source.meta.get("val") if isinstance(source, fx.Node) else None
    after = node.meta.get("val")
    return isinstance(before, Tensor) and isinstance(after, Tensor) and before.shape == after.shape


def _split(graph: fx.GraphModule, kept_count: int) -> tuple[Any, Any]:
    """Return two functions: one makes views of the kept inputs, and constants; the other does the rest.

    The second one takes the results of the first one, then the other inputs.
    """
    nodes = list(graph.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    written = _find_written(nodes)
    once = set(placeholders[:kept_count])
    for node in nodes:
        if node.op == "call_function" and _is_made_once(node, once, written):
            once.add(node)
    rest = [node for node in nodes if node not in once and node.op != "placeholder"]
    shared = [node for node in nodes if node in once and any(user not in once for user in node.users)]
    first, second = fx.Graph(), fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in [*placeholders[:kept_count], *(n for n in nodes if n in once and n.op != "placeholder")]:
        copies[node] = first.node_copy(node, copies.__getitem__)
    first.output(tuple(copies[node] for node in shared))
    copies = {node: second.placeholder(node.name) for node in shared}
    copies |= {node: second.placeholder(node.name) for node in placeholders[kept_count:]}
    for node in rest:
        copies[node] = copy = second.node_copy(node, copies.__getitem__)
        copy.target = _BINDINGS.get(copy.target, copy.target)
        if isinstance(copy.target, str) and copy.op == "call_function":
            copy.op = "call_method"
    return fx.GraphModule(graph, first).forward, fx.GraphModule(graph, second).forward


def _is_made_once(node: fx.Node, once: set[fx.Node], written: set[fx.Node]) -> bool:
    """Return whether *node* is a view of values made once, or a constant that nothing writes to."""
    sources = node.all_input_nodes
    if node.target is getitem:
        return all(source in once for source in sources)
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return False
    if sources:
        aliases = [out.alias_info for out in schema.returns]
        is_view = all(alias is not None and not alias.is_write for alias in aliases)
        return bool(aliases) and is_view and all(source in once for source in sources)
    is_random = torch.Tag.nondeterministic_seeded in node.target.tags  # type: ignore[union-attr]
    return not is_random and node not in written


def _find_written(nodes: list[fx.Node]) -> set[fx.Node]:
    """Return the nodes to the memory of which an operator writes, directly or through views."""
    owners: dict[fx.Node, set[fx.Node]] = {}
    written: set[fx.Node] = set()
    for node in nodes:
        owners[node] = {node}
        schema = getattr(node.target, "_schema", None)
        if node.target is getitem or (schema and any(out.alias_info is not None for out in schema.returns)):
            owners[node].update(*(owners[source] for source in node.all_input_nodes))
        if schema is not None and schema.is_mutable:
            written.update(*(owners[source] for source in node.all_input_nodes))
    return written
