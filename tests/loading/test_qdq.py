"""QDQ models: with every point on, the float twin is what ONNX Runtime computes of the file."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from hbdebug.engine import Engine
from hbdebug.loading import load
from hbdebug.model import Assignment
from tests import qdq_models


def plain_run(model: onnx.ModelProto, sample):
    """Run a file as it is: ONNX Runtime, no optimizations."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for node in model.graph.node:
        # ONNX Runtime refuses two nodes of one name, which nothing else depends on.
        node.name = ""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, sample), strict=True))


@pytest.mark.parametrize("form", qdq_models.forms())
def test_all_points_on_equals_the_file_bit_for_bit(form):
    proto = qdq_models.FORMS[form]()
    model = load(proto)
    engine = Engine(model, jobs=1)
    assert all(point.enabled or point.role == "weight" for point in model.points)
    for sample in qdq_models.feeds(proto):
        expected = plain_run(proto, sample)
        outputs = engine.forward(sample, Assignment.as_calibrated(model))
        assert outputs.keys() == expected.keys()
        for name, array in expected.items():
            assert outputs[name].dtype == array.dtype
            np.testing.assert_array_equal(outputs[name], array)
            assert np.array_equal(np.signbit(outputs[name]), np.signbit(array))
