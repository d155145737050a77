"""A network as a chain of layers: its graph, cut wherever one tensor carries everything."""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn

from seqgc.errors import ParameterError, refusing

_REMEDY = "train it with data parallelism instead: seqgc train"


class LayerChain:
    """The layers of a network, in the order of the forward pass.

    torch.fx traces the network, and a pass with ``example``, a minibatch of inputs, checks that it
    still computes the same: code that does not depend on the input, such as a counter in a buffer,
    runs only once, while the network is traced. A layer ends at each
    *articulation point*: a tensor that every path from the input to the output passes. A block with
    a skip connection is one layer. The layers share their parameters with the network.

    Raises
    ------
    ParameterError
        If the network does not take ``example``, if torch.fx cannot trace it, if it has fewer than
        two layers, or if two layers share a parameter, or a buffer that the forward pass changes.

    Examples
    --------
    >>> from torch import nn
    >>> network = nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Linear(3, 2))
    >>> LayerChain(network, torch.zeros(1, 4)).names
    ['0 Linear … 1 ReLU', '2 Linear']
    """

    def __init__(self, module: nn.Module, example: object) -> None:
        kind = type(module).__name__
        if not isinstance(example, Tensor):
            rule = "must have inputs that are one tensor for each minibatch"
            raise ParameterError("data", rule, type(example).__name__)
        original, before = copy.deepcopy(module), _buffers(module)
        with refusing("module", "must take the data ({})", kind):
            output = _pass(original, example)
        with refusing("module", "must be a network that torch.fx can trace ({})", kind, _REMEDY):
            traced = fx.symbolic_trace(module)
            traced.graph.eliminate_dead_code()
            copied = copy.deepcopy(traced)  # a pass changes the statistics of batch normalisation
            recorder = _Recorder(copied)
            recorded = _pass(recorder.run, example)
        after = _buffers(original)
        values = recorded, _buffers(module), before | _buffers(copied, of=before)
        if isinstance(output, Tensor) and not _close((output, before, after), values):
            rule = "must compute the same after torch.fx has traced it; its forward pass changes a "
            rule += "buffer, or draws numbers whose shape does not depend on the input"
            raise ParameterError("module", rule, kind, _REMEDY)
        same = dict(zip(copied.graph.nodes, traced.graph.nodes, strict=True))
        tensors = {same[node] for node in recorder.unchanged()}
        self._module = module
        self._changed = {name for name in after if not _close(before[name], after[name])}
        self._segments = list(_segments(traced.graph, tensors))
        if len(self._segments) < 2:
            rule = "must have a point where one tensor carries everything, so that it can be cut"
            raise ParameterError("module", rule, kind, _REMEDY)
        self._require_separate_tensors()

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def names(self) -> list[str]:
        """The names of the layers: of their modules, or of an operation without a module."""
        names = []
        for segment in self._segments:
            modules = [self._name_of(node) for node in segment if node.op == "call_module"]
            ends = dict.fromkeys((modules[0], modules[-1]) if modules else (segment[-1].name,))
            names.append(" … ".join(ends))
        return names

    def _name_of(self, node: fx.Node) -> str:
        target = str(node.target)
        return f"{target} {type(self._module.get_submodule(target)).__name__}"

    def stage(self, first: int, last: int) -> fx.GraphModule:
        """Return the layers ``first`` to ``last`` (included) as one module, with the same names."""
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}

        def copied(node: fx.Node) -> fx.Node:
            if node not in copies:
                if node.op == "get_attr":
                    copies[node] = graph.node_copy(node)
                else:  # the output of the stage before
                    copies[node] = graph.placeholder("x")
            return copies[node]

        nodes = [node for segment in self._segments[first : last + 1] for node in segment]
        before = self._segments[first - 1][-1] if first else self._input()
        copied(before)
        for node in nodes:
            copies[node] = graph.node_copy(node, copied)
        graph.output(copies[nodes[-1]])
        return fx.GraphModule(self._module, graph, type(self._module).__name__)

    def _input(self) -> fx.Node:
        graph = self._segments[0][0].graph
        node: fx.Node = next(node for node in graph.nodes if node.op == "placeholder")
        return node

    def _require_separate_tensors(self) -> None:
        """Refuse tensors that change during training and belong to two layers."""
        owners: dict[int, int] = {}
        for at in range(len(self)):
            layer = self.stage(at, at)
            changed = [each for each in layer.named_buffers() if each[0] in self._changed]
            for name, tensor in (*layer.named_parameters(), *changed):
                if (first := owners.setdefault(id(tensor), at)) != at:
                    rule = "must have separate parameters and statistics in its layers "
                    rule += f"{first + 1} and {at + 1}, which may be on different workers"
                    raise ParameterError("module", rule, name, _REMEDY)


class _Recorder(fx.Interpreter):
    """An interpreter that keeps every tensor, and the number of its changes when it was made."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.made: dict[fx.Node, tuple[Tensor, int]] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.made[n] = result, result._version
        return result

    def unchanged(self) -> set[fx.Node]:
        """Return the nodes of floating-point tensors that no later node changes in place.

        Autograd cannot begin at a tensor that is changed in place.
        """
        return {
            node
            for node, (tensor, version) in self.made.items()
            if tensor.is_floating_point() and tensor._version == version
        }


def _pass(forward: Callable[[Tensor], Any], example: Tensor) -> Any:
    """Return the output for a copy of the example, which the first layer may change in place."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return forward(example.clone())


def _buffers(module: nn.Module, of: Container[str] | None = None) -> dict[str, Tensor]:
    """Return copies of the buffers, or of those that are in ``of``."""
    return {name: each.clone() for name, each in module.named_buffers() if of is None or name in of}


def _close(expected: object, found: object) -> bool:
    """Compare tensors, or tuples and dictionaries of tensors, with a tolerance for rounding."""
    try:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    except AssertionError:
        return False
    return True


def _segments(graph: fx.Graph, tensors: set[fx.Node]) -> Iterator[list[fx.Node]]:
    """Yield the nodes between articulation points; the nodes of parameters are left out."""
    inputs = [node for node in graph.nodes if node.op == "placeholder" and node.users]
    if len(inputs) != 1:
        raise ParameterError("module", "must have one input", len(inputs), _REMEDY)
    (output,) = (node for node in graph.nodes if node.op == "output")
    if output.args[0] not in tensors:
        raise ParameterError("module", "must return one tensor", str(output.args[0]), _REMEDY)
    nodes = [
        node for node in graph.nodes if node.op in ("call_module", "call_function", "call_method")
    ]
    open_nodes, segment = set(inputs), list[fx.Node]()
    at = {node: position for position, node in enumerate([*nodes, output])}
    for node in nodes:
        segment.append(node)
        open_nodes.add(node)
        open_nodes = {
            each
            for each in open_nodes
            if max((at[user] for user in each.users), default=0) > at[node]
        }
        if open_nodes == {node} and node in tensors:
            yield segment
            segment = []
