"""Frozen records of what was measured: the contract between analyses, reports and users.

`SensitivityResult.to_json` writes what ``sensitivity.json`` holds. Numbers are JSON numbers in
full precision. JSON has no infinity and no NaN: an infinite SQNR (no error at all) is ``null``
with ``"exact": true`` beside it, an undefined number (NaN) is ``null``, and every other number
that is not finite is ``null`` with ``"non_finite": {NAME: "inf" | "-inf" | "nan"}`` beside it.

Names in the JSON are fixed from schema version 1 on; additions are free, so a reader ignores
names that it does not know and gives a missing field its default.
"""

from __future__ import annotations

from hbdebug.results.records import (
    SCHEMA_VERSION,
    Ceiling,
    CurveStep,
    DataInfo,
    Diagnostic,
    Effect,
    FormDifference,
    InputWarning,
    ListedNode,
    ListedPoint,
    MetricValues,
    ModelInfo,
    ModelListing,
    NodeResult,
    NotAnalysed,
    PointResult,
    SensitivityResult,
    Suggestion,
)

__all__ = [
    "SCHEMA_VERSION",
    "Ceiling",
    "CurveStep",
    "DataInfo",
    "Diagnostic",
    "Effect",
    "FormDifference",
    "InputWarning",
    "ListedNode",
    "ListedPoint",
    "MetricValues",
    "ModelInfo",
    "ModelListing",
    "NodeResult",
    "NotAnalysed",
    "PointResult",
    "SensitivityResult",
    "Suggestion",
]
