"""What a march allows, and what a type setting on one node really changes.

A user who writes ``{'ON': 'CPU'}`` or ``{'InputType': 'int16'}`` for a node does not get that node
in float or int16, but a change of the quantization points around it. Which points change depends
on the operator that makes the node's input, and on who else reads it. The rules here were
measured with HMCT 1.1.0 on bayes-e; ``docs/lift_rules.md`` tells how, and what is assumed.

The rules are stated for a *set* of settings, so the order of lifting nodes does not matter::

    lifted(model, as_calibrated, {"Conv_3": "cpu", "Mul_7": "int16"}, "bayes-e")
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hbdebug.errors import UsageError
from hbdebug.model import Assignment
from hbdebug.names import close_matches
from hbdebug.toolchain.graph import Graph, Outcome, Target
from hbdebug.toolchain.operators import brought_back, int16_refusal
from hbdebug.toolchain.placement import CpuRules
from hbdebug.toolchain.spreading import Int16Rules

__all__ = [
    "MARCHES",
    "Lift",
    "Target",
    "all_int16",
    "check_march",
    "int16_refusal",
    "int16_where_allowed",
    "lift",
    "lifted",
    "suggested_action",
]

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hbdebug.model import Node, QuantModel
    from hbdebug.quant import QuantParams

MARCHES: Mapping[str, str] = {
    "bernoulli2": "X3",
    "bayes": "J5, Ultra",
    "bayes-e": "X5",
    "nash-e": "J6E, S100",
    "nash-m": "J6M, S100P",
    "nash-p": "J6P, S600",
    "nash-h": "J6H",
    "nash-b": "J6B",
    "nash-b-lite": "J6B Lite",
    "nash-b-plus": "J6B Plus",
}
"""Every march -> the chips that have it."""

_NOT_MEASURED = {
    "nash": "nash rules are documented by the vendor, not measured; assumed to be those of bayes-e",
    "bernoulli2": "spot-checked on bernoulli2 only; assumed to follow the rules of bayes-e",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Lift:
    """What one more setting changes.

    Attributes:
        node: The node that is set.
        to: ``int16`` or ``cpu``.
        changes: Point name -> new parameters, or None where the point goes.
        bypassed: Inputs (node name, input index) that read the tensor in front of a point which
            stays for its other readers.
        described: The same in words, one entry a point; empty when nothing changes.
        notes: What about it follows no measured rule or is not simulated, in words.
    """

    node: str
    to: Target
    changes: Mapping[str, QuantParams | None]
    bypassed: frozenset[tuple[str, int]] = frozenset()
    described: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def check_march(name: str) -> str:
    """Return the march's name.

    Raises:
        UsageError: There is no such march.
    """
    if name in MARCHES:
        return name
    known = ", ".join(f"{march} ({chips})" for march, chips in MARCHES.items())
    hint = f"{close_matches(name.lower(), MARCHES)} Known: {known}."
    raise UsageError(f"no such march: {name!r}", hint=hint.strip())


def int16_where_allowed(model: QuantModel, assignment: Assignment, march: str) -> Assignment:
    """Set to int16 every point that the march lets become int16.

    That is the outcome of asking for int16 on every node at once. A point that GlobalAveragePool
    or MatMul reads stays int8 for all its readers.
    """
    check_march(march)
    wanted: dict[str, Target] = {node.name: "int16" for node in model.nodes}
    outcome = _resolve(model, march, wanted, everything=True)
    return assignment.changed(_changes(model, assignment, outcome))


def all_int16(model: QuantModel, assignment: Assignment) -> Assignment:
    """Set to int16 every activation point of the assignment, whether or not a march allows it."""
    changes = {
        point.name: assignment[point.name].to_int16()
        for point in model.points
        if point.role == "activation" and point.name in assignment
    }
    return assignment.changed(changes)


def lifted(
    model: QuantModel, assignment: Assignment, nodes: Mapping[str, Target], march: str
) -> Assignment:
    """Apply a set of settings, as the toolchain would when it converts with all of them.

    Args:
        model: The model.
        assignment: What holds without the settings.
        nodes: Node name -> ``int16`` or ``cpu``.
        march: A key of `MARCHES`.

    Raises:
        UsageError: No such node, march or setting.
    """
    check_march(march)
    _check_nodes(model, nodes)
    outcome = _resolve(model, march, nodes)
    return assignment.changed(_changes(model, assignment, outcome), bypassed=outcome.bypassed)


def lift(
    model: QuantModel,
    assignment: Assignment,
    node: str,
    march: str,
    *,
    to: Target | None = None,
    after: Mapping[str, Target] | None = None,
) -> Lift:
    """Work out what setting one more node changes.

    ``assignment.changed(lift.changes, bypassed=lift.bypassed)`` is the assignment that holds
    with the setting. With ``after`` given it is the one that `lifted` returns for all settings
    together, whatever their order.

    Args:
        model: The model.
        assignment: What holds before.
        node: Name of the node to set.
        march: A key of `MARCHES`.
        to: What to set; None chooses int16 where march and operator allow it and it changes a
            point, else the CPU.
        after: The nodes that are set already, in ``assignment``: a point that two nodes read
            goes only when both are on the CPU. If ``node`` is among them, its setting is replaced.

    Raises:
        UsageError: No such node or march, or ``int16`` where it is refused.
    """
    check_march(march)
    before = dict(after or {})
    _check_nodes(model, [node])
    refusal = int16_refusal(model.node_by_name[node], model, march)
    if to == "int16" and refusal:
        raise UsageError(
            f"{node} cannot be set to int16: {refusal}", where=model.path, hint="Set it to cpu."
        )
    if to is None:
        to = "cpu" if refusal else "int16"
        found = _lift(model, assignment, node, march, to, before)
        if found.changes or found.bypassed or to == "cpu":
            return found
        to = "cpu"
    return _lift(model, assignment, node, march, to, before)


def suggested_action(node: Node, model: QuantModel, march: str) -> tuple[str, str]:
    """Say what the user can set a node to, without measuring.

    Returns:
        ``int16``, ``cpu`` or ``keep``, and a note: why, or what it does not cure.
    """
    assignment = Assignment.as_calibrated(model)
    refusal = int16_refusal(node, model, march)
    if not refusal:
        raised = _lift(model, assignment, node.name, march, "int16", {})
        if raised.changes:
            return "int16", "; ".join(raised.notes)
    moved = _lift(model, assignment, node.name, march, "cpu", {})
    if moved.changes or moved.bypassed:
        return "cpu", refusal or "its input stays int8 when set to int16"
    return "keep", refusal or "neither int16 nor CPU changes a point"


def _resolve(
    model: QuantModel, march: str, nodes: Mapping[str, Target], *, everything: bool = False
) -> Outcome:
    """Apply the rules: first what moves to the CPU, then who gets int16."""
    outcome = Outcome()
    graph = Graph(model)
    CpuRules(graph, outcome, march).apply(
        name for name, setting in nodes.items() if setting == "cpu"
    )
    rules = Int16Rules(graph, outcome, march)
    if outcome.wishes:
        rules.raise_points(point for point in model.points if point.input in outcome.wishes)
    wanted = (name for name, setting in nodes.items() if setting == "int16")
    for name in sorted(wanted, key=model.position_of.__getitem__):
        node = model.node_by_name[name]
        if not int16_refusal(node, model, march):
            rules.request(node)
    if everything and march != "bernoulli2":
        rules.raise_points(p for p in model.points if not any(model.consuming_nodes(p)))
    return outcome


def _changes(
    model: QuantModel, assignment: Assignment, outcome: Outcome
) -> dict[str, QuantParams | None]:
    """Turn an outcome into changes of an assignment."""
    changes: dict[str, QuantParams | None] = {}
    for name in sorted(outcome.gone | outcome.int16, key=model.position_of.__getitem__):
        params = assignment.get(name)
        if params is None:
            continue
        if name in outcome.gone:
            changes[name] = None
        elif params.dtype != "int16" and params.is_integer:
            changes[name] = params.to_int16()
    return changes


def _lift(
    model: QuantModel,
    assignment: Assignment,
    node: str,
    march: str,
    to: Target,
    after: Mapping[str, Target],
) -> Lift:
    """Compare the outcome with and without the setting."""
    outcome = _resolve(model, march, {**after, node: to})
    old = _resolve(model, march, after) if after else Outcome()
    changes = _changes(model, assignment, outcome)
    undone = (old.gone - outcome.gone) | (old.int16 - outcome.int16 - outcome.gone)
    for name in undone:
        params = model.point_by_name[name].params
        if params is not None:
            changes[name] = params.to_int16() if name in outcome.int16 else params
    bypassed = frozenset(outcome.bypassed) - assignment.bypassed
    notes = [*_march_notes(march), *(note for note in outcome.notes if note not in old.notes)]
    if to == "int16":
        notes.append(brought_back(model.node_by_name[node]))
    words = [_words(assignment, name, new) for name, new in changes.items()]
    words += [f"{reader} input {index} reads float" for reader, index in sorted(bypassed)]
    return Lift(
        node=node,
        to=to,
        changes=changes,
        bypassed=bypassed,
        described=tuple(words),
        notes=tuple(note for note in notes if note),
    )


def _words(assignment: Assignment, name: str, new: QuantParams | None) -> str:
    old = assignment.get(name)
    return f"{name} {old.dtype if old else 'float'} -> {new.dtype if new else 'float'}"


def _march_notes(march: str) -> list[str]:
    return [text for family, text in _NOT_MEASURED.items() if march.startswith(family)]


def _check_nodes(model: QuantModel, names: Iterable[str]) -> None:
    for name in names:
        if name not in model.node_by_name:
            raise UsageError(
                f"no node named {name!r}",
                where=model.path,
                hint=close_matches(name, model.node_by_name) or "See `hbdebug info MODEL`.",
            )
