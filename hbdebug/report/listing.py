"""What ``hbdebug info`` shows: the model, its points and its nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hbdebug.report.numbers import format_real
from hbdebug.report.rows import points_text, tensor_rows
from hbdebug.report.terminal import column, literal, print_columns, print_facts, print_title, stack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from hbdebug.report.terminal import Column
    from hbdebug.results import ListedNode, ListedPoint, ModelListing


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedPointRow:
    """One point as text; ``state`` is empty for a point that the file quantizes and names."""

    name: str
    role: str
    dtype: str
    granularity: str
    threshold: str
    scale: str
    tensor: str
    consumers: str
    state: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedNodeRow:
    """One node as text; ``state`` is empty for a node that would be analysed and has a name."""

    name: str
    op_type: str
    points: str
    state: str


def listing_header(listing: ModelListing) -> list[tuple[str, str]]:
    """Return what was loaded, as (label, text); a blank label continues the one above."""
    model = listing.model
    return [
        ("Model", model.path),
        ("SHA-256", model.sha256),
        ("Kind", ", ".join(filter(None, (model.kind, model.producer)))),
        ("Nodes", str(model.nodes)),
        ("Points", points_text(model.points)),
        *tensor_rows("Inputs", model.inputs),
        *tensor_rows("Outputs", model.outputs),
        ("Versions", f"hbdebug {listing.hbdebug_version}"),
    ]


def listed_point_rows(listing: ModelListing) -> list[ListedPointRow]:
    """Return one row a point, in the order of the listing."""
    return [
        ListedPointRow(
            name=point.name,
            role=point.role,
            dtype=point.dtype,
            granularity=point.granularity,
            threshold=format_real(point.threshold),
            scale=format_real(point.scale),
            tensor=point.tensor,
            consumers=", ".join(point.consumers) or "(graph output)",
            state="; ".join(
                filter(None, (_point_state(point), _original(point), _own_name(point)))
            ),
        )
        for point in listing.points
    ]


def listed_node_rows(listing: ModelListing) -> list[ListedNodeRow]:
    """Return one row a node, in the order of the listing."""
    return [
        ListedNodeRow(
            name=node.name,
            op_type=node.op_type,
            points=", ".join(node.points),
            state="; ".join(filter(None, (_node_state(node), _own_name(node)))),
        )
        for node in listing.nodes
    ]


def _node_state(node: ListedNode) -> str:
    if node.analysed:
        return ""
    return f"not analysed: {node.reason}" if node.reason else "not analysed"


def _original(point: ListedPoint) -> str:
    return f"original: {point.original}" if point.original else ""


def _point_state(point: ListedPoint) -> str:
    if point.enabled:
        return ""
    return f"off: {point.reason}" if point.reason else "off"


def _own_name(item: ListedNode | ListedPoint) -> str:
    """Say what the file calls something that has no name of its own there."""
    if item.name_in_file in {None, item.name}:
        return ""
    return f"called {item.name_in_file} in the file" if item.name_in_file else "no name in the file"


def render_listing(listing: ModelListing, *, console: Console) -> None:
    """Print the listing of a model.

    Args:
        listing: What the model holds.
        console: Where to; `hbdebug.report.terminal.make_console` gives one.
    """
    console.print(literal(f"hbdebug info {listing.model.path}", "bold"))
    print_facts(console, listing_header(listing))
    print_title(console, f"Points: {len(listing.points)}")
    if listing.points:
        print_columns(console, _point_layouts(listed_point_rows(listing)))
    print_title(console, f"Nodes: {listing.coverage or len(listing.nodes)}")
    if listing.nodes:
        print_columns(console, _node_layouts(listed_node_rows(listing)))


def _point_layouts(rows: Sequence[ListedPointRow]) -> list[list[Column]]:
    name = column("point", (row.name for row in rows), folds=True)
    role = column("role", (row.role for row in rows))
    dtype = column("dtype", (row.dtype for row in rows))
    granularity = column("granularity", (row.granularity for row in rows))
    threshold = column("threshold", (row.threshold for row in rows), right=True)
    scale = column("scale", (row.scale for row in rows), right=True)
    tensor = column("tensor", (row.tensor for row in rows), folds=True)
    consumers = column("consumers", (row.consumers for row in rows), folds=True)
    state = column("state", (row.state for row in rows), folds=True, style=_state_style)
    return [
        [name, role, dtype, granularity, threshold, scale, tensor, consumers, state],
        [
            stack(name, tensor),
            stack(role, granularity),
            stack(threshold, scale),
            dtype,
            consumers,
            state,
        ],
        [
            stack(name, tensor),
            stack(stack(role, dtype), granularity),
            stack(threshold, scale),
            stack(consumers, state),
        ],
    ]


def _node_layouts(rows: Sequence[ListedNodeRow]) -> list[list[Column]]:
    name = column("node", (row.name for row in rows), folds=True)
    op_type = column("op", (row.op_type for row in rows))
    points = column("points", (row.points for row in rows), folds=True)
    state = column("state", (row.state for row in rows), folds=True, style=_state_style)
    return [[name, op_type, points, state], [stack(name, op_type), stack(points, state)]]


def _state_style(_: str) -> str:
    return "yellow"
