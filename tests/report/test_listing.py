"""What ``hbdebug info`` shows."""

from __future__ import annotations

import dataclasses

import pytest

from hbdebug.report.listing import (
    ListedNodeRow,
    ListedPointRow,
    listed_node_rows,
    listed_point_rows,
    listing_header,
    render_listing,
)
from tests.report.example_result import LISTING
from tests.report.snapshot import matches_snapshot, text_of, width_of


def rendered(listing, *, width=None):
    return text_of(lambda console: render_listing(listing, console=console), width=width)


def test_point_rows_hold_every_column():
    rows = listed_point_rows(LISTING)

    assert rows[0] == ListedPointRow(
        name="x_HzCalibration",
        role="activation",
        dtype="int8",
        granularity="per-tensor",
        threshold="1",
        scale="0.007874",
        tensor="x",
        consumers="Conv@0",
        state="",
    )
    assert rows[2].state == "off: switched off in the file"
    assert (rows[2].threshold, rows[2].scale) == ("", "")


def test_a_point_at_a_graph_output_has_no_consumer_to_name():
    point = dataclasses.replace(LISTING.points[0], consumers=(), enabled=False)
    (row,) = listed_point_rows(dataclasses.replace(LISTING, points=(point,)))

    assert row.consumers == "(graph output)"
    assert row.state == "off"


def test_node_rows_say_what_would_not_be_analysed_and_why():
    assert listed_node_rows(LISTING) == [
        ListedNodeRow(
            name="Conv@0",
            op_type="Conv",
            points="x_HzCalibration, conv2d_0.w_0_HzCalibration",
            state="",
        ),
        ListedNodeRow(
            name="Softmax@0", op_type="Softmax", points="", state="not analysed: run in float"
        ),
    ]


def test_the_header_identifies_the_file():
    assert ("SHA-256", "0f" * 32) in listing_header(LISTING)


@pytest.mark.parametrize("width", [70, 80, 100, 120])
def test_nothing_is_cut_at_any_width(width):
    text = rendered(LISTING, width=width)

    assert "\u2026" not in text
    assert width_of(text) <= width
    for point in LISTING.points:
        assert point.role in text
        assert point.dtype in text


def test_a_model_without_points_and_nodes_renders():
    text = rendered(dataclasses.replace(LISTING, points=(), nodes=(), coverage=""))

    assert "Points: 0" in text
    assert "Nodes: 0" in text


def test_the_listing_in_a_pipe():
    matches_snapshot("info_pipe.txt", rendered(LISTING))


def test_the_listing_on_a_terminal_of_100_columns():
    matches_snapshot("info_100.txt", rendered(LISTING, width=100))
