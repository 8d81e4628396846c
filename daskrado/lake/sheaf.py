"""Part of the tree of merges: whatever partitions a task reads, floats sum in the same order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from daskrado.lake.partial import FAN_IN, Job, Partial, merge_all

Node = tuple[int, int]  # level above the partitions, place in that level


@dataclass(frozen=True)
class Sheaf:
    """The nodes that some partitions make in the tree over ``leaves`` partitions, as far as they are complete.

    Partitions are merged in groups of FAN_IN, those groups in groups of FAN_IN, and so on. A task that reads a run of
    partitions returns few nodes, and two sheaves joined complete the nodes that they share.
    """

    nodes: dict[Node, Partial]
    leaves: int

    def __repr__(self) -> str:
        return f"<Sheaf of {len(self.nodes)} private sums>"

    def root(self) -> Partial:
        """The sum over all partitions; every one of them must have been handed in."""
        (total,) = self.nodes.values()
        return total


def gather(job: Job, parts: Iterable[tuple[int, Partial]], leaves: int) -> Sheaf:
    """The sheaf of some partitions, by their places in the lake; few partial sums are held at once."""
    nodes: dict[Node, Partial] = {}
    for place, part in parts:
        nodes[0, place] = part
        if (place + 1) % FAN_IN == 0 or place + 1 == leaves:
            _fold(job, nodes, leaves)
    return Sheaf(nodes, leaves)


def join(job: Job, sheaves: list[Sheaf]) -> Sheaf:
    """The sheaf of all their partitions."""
    nodes = {node: part for sheaf in sheaves for node, part in sheaf.nodes.items()}
    _fold(job, nodes, sheaves[0].leaves)
    return Sheaf(nodes, sheaves[0].leaves)


def _fold(job: Job, nodes: dict[Node, Partial], leaves: int) -> None:
    """Merge every group whose members are all there, from the partitions up."""
    depth, width = 0, leaves
    while width > 1:
        for group in sorted({place // FAN_IN for level, place in nodes if level == depth}):
            members = [(depth, i) for i in range(FAN_IN * group, min(FAN_IN * (group + 1), width))]
            if all(member in nodes for member in members):
                nodes[depth + 1, group] = merge_all(job, [nodes.pop(member) for member in members])
        depth, width = depth + 1, -(-width // FAN_IN)
