"""QDQ models: with every point on, the float twin is what ONNX Runtime computes of the file."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from hbdebug.engine import Engine
from hbdebug.loading import load
from hbdebug.model import Assignment
from hbdebug.pipeline import sensitivity
from tests import qdq_models
from tests.models import save_samples
from tests.onnxruntime_quantizer import float_run


def plain_run(model: onnx.ModelProto, sample):
    """Run a file as it is: ONNX Runtime, no optimizations."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    for node in copy.graph.node:
        # ONNX Runtime refuses two nodes of one name, which nothing else depends on.
        node.name = ""
    return float_run(copy, sample)


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


def test_case_25_results_do_not_depend_on_what_an_optimizer_fuses(tmp_path):
    proto = qdq_models.double_pairs()
    sample = qdq_models.feeds(proto)
    result = sensitivity(proto, save_samples(tmp_path, sample), suggest=False, exact=True)

    assert result.settings["optimization"] == "walk: basic, jump: basic"
    # As calibrated against the float twin, both computed here from the file as it is.
    (baseline,) = plain_run(without_pairs(proto), sample[0]).values()
    (quantized,) = plain_run(proto, sample[0]).values()
    model = load(proto)
    engine = Engine(model, jobs=1)
    (found,) = engine.forward(sample[0], Assignment.as_calibrated(model)).values()
    (float_twin,) = engine.forward(sample[0]).values()
    np.testing.assert_array_equal(found, quantized)
    np.testing.assert_array_equal(float_twin, baseline)


def without_pairs(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with Identity for every pair on an activation."""
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    stored = {item.name for item in copy.graph.initializer}
    for node in copy.graph.node:
        if node.op_type.endswith("antizeLinear") and node.input[0] not in stored:
            node.op_type = "Identity"
            del node.input[1:]
            del node.attribute[:]
    return copy


def test_case_30_relu_in_front_of_sixteen_bits_with_a_zero_point():
    proto = qdq_models.relu_in_16_bit()
    model = load(proto)
    sample = qdq_models.feeds(proto, count=1)[0]
    (found,) = Engine(model, jobs=1).forward(sample, Assignment.as_calibrated(model)).values()
    x = np.maximum(sample["x"], 0)
    q = np.clip(np.rint(x / np.float32(0.0001)) + 100, -32768, 32767)
    np.testing.assert_array_equal(found, ((q - 100) * np.float32(0.0001)).astype(np.float32))


def test_case_32_every_node_of_sixteen_bits_is_measured_without_value_info(tmp_path):
    proto = qdq_models.contrib_16_bit()
    assert not proto.graph.value_info
    result = sensitivity(
        proto, save_samples(tmp_path, qdq_models.feeds(proto)), suggest=False, split=False
    )
    assert {node.name for node in result.nodes} == {"one", "two"}
    assert all(0 < node.alone.values["sqnr_db"] < 200 for node in result.nodes)
