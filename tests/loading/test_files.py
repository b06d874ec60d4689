"""Files are read once, never changed, and a wrong one is answered with what to do."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from hbdebug.errors import ModelError
from hbdebug.loading import load
from tests.loading.golden import FIXTURES, cases
from tests.models import CalibratedModel, residual

CLASSIFIER = FIXTURES / "textline_cls" / "cls_calibrated_model.onnx"


def error_of(model, **options) -> ModelError:
    with pytest.raises(ModelError) as info:
        load(model, **options)
    return info.value


def float_model() -> onnx.ModelProto:
    b = CalibratedModel()
    b.output(b.node("Relu", [b.input("x", (1, 2))], "relu"))
    return b.proto()


def test_real_classifier_is_read_whole():
    model = load(CLASSIFIER)
    assert model.path == str(CLASSIFIER)
    assert model.sha256 == hashlib.sha256(CLASSIFIER.read_bytes()).hexdigest()
    assert model.kind == "HMCT calibrated"
    assert model.producer == "horizon_nn 1.1.0"
    assert model.opset == 11
    assert [(spec.name, spec.dtype, spec.shape) for spec in model.inputs] == [
        ("x", "float32", (1, 3, 48, 192))
    ]
    assert [spec.shape for spec in model.outputs] == [(1, 2)]
    assert len(model.nodes) == 127
    kinds = [(point.role, point.params.dtype) for point in model.points]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        ("weight", "int8"): 54,
        ("activation", "int8"): 103,
        ("activation", "int16"): 1,
    }
    assert all(point.enabled for point in model.points)
    assert not model.skipped


def test_path_and_string_and_message_give_the_same_model():
    proto = onnx.load(str(CLASSIFIER))
    from_path, from_string, from_proto = load(CLASSIFIER), load(str(CLASSIFIER)), load(proto)
    for other in (from_string, from_proto):
        assert [step.name for step in other.steps] == [step.name for step in from_path.steps]
        assert other.constants.keys() == from_path.constants.keys()
    assert from_proto.sha256 == hashlib.sha256(proto.SerializeToString()).hexdigest()
    assert from_proto.path == "(in memory)"


def test_message_of_the_caller_is_neither_changed_nor_shared():
    # https://github.com/quic/aimet/issues/4041: a second simulator on one model failed.
    proto = residual()
    before = proto.SerializeToString()
    first = load(proto)
    load(proto)
    assert proto.SerializeToString() == before
    proto.graph.node[0].attribute[0].i = 99
    proto.graph.initializer[0].raw_data = b""
    assert first.constants[proto.graph.initializer[0].name].size


def test_file_is_read_once(monkeypatch):
    reads = []
    original = Path.read_bytes

    def counting(self):
        reads.append(self)
        return original(self)

    monkeypatch.setattr(Path, "read_bytes", counting)
    load(CLASSIFIER)
    assert reads == [CLASSIFIER]


def test_missing_file_suggests_close_names(tmp_path):
    shutil.copy(CLASSIFIER, tmp_path / "cls_calibrated_model.onnx")
    error = error_of(tmp_path / "cls_calibratd_model.onnx")
    assert "no such file" in error.message
    assert error.hint == "Did you mean cls_calibrated_model.onnx?"
    assert "There is no directory" in error_of(tmp_path / "nowhere" / "m.onnx").hint


def test_directory_names_the_models_in_it(tmp_path):
    assert "is a directory" in error_of(tmp_path).message
    (tmp_path / "cls_calibrated_model.onnx").touch()
    assert error_of(str(tmp_path)).hint.endswith("cls_calibrated_model.onnx")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "Git LFS pointer"),
        (b"\x93NUMPY\x01\x00", "NumPy array"),
        (b"PK\x03\x04 and more", "zip archive"),
        (b"\x7fELF\x02\x01\x01", "compiled program"),
        (b"model:\n  march: bayes-e\n", "cut short, or it never was one"),
        (bytes(range(256)) * 8, "cut short, or it never was one"),
    ],
)
def test_file_that_is_no_model_says_what_it_is(tmp_path, content, reason):
    file = tmp_path / "model.onnx"
    file.write_bytes(content)
    error = error_of(file)
    assert error.where == str(file)
    assert reason in error.message
    assert error.hint


@pytest.mark.parametrize("kept", [0.999, 0.9, 0.5, 0.1, 0.01])
def test_file_cut_short_is_refused(tmp_path, kept):
    content = CLASSIFIER.read_bytes()
    file = tmp_path / "cut_calibrated_model.onnx"
    file.write_bytes(content[: int(len(content) * kept)])
    assert "not a complete ONNX model" in error_of(file).message


def test_file_that_lost_only_what_stands_behind_the_graph_is_refused():
    proto = residual()
    del proto.opset_import[:]
    assert "no operator set; it may be cut short" in error_of(proto).message


def test_unreadable_file_says_why(tmp_path):
    error = error_of(tmp_path / ("x" * 300))
    assert "cannot be read" in error.message


def test_message_that_cannot_be_serialized(monkeypatch):
    # Two gigabytes in a test would be rude: a stand-in fails as protobuf does.
    class TooLarge:
        graph = onnx.GraphProto()

        def SerializeToString(self):  # noqa: N802
            raise ValueError("exceeded maximum protobuf size of 2GB")

    monkeypatch.setattr("hbdebug.loading.protobuf.onnx.ModelProto", TooLarge)
    assert "cannot be serialized" in error_of(TooLarge()).message


def test_external_data_are_found_beside_the_model_and_count_for_the_digest(tmp_path):
    proto = residual()
    expected = load(proto)
    digests = set()
    for value in (0.0, 1.0):
        copy = onnx.ModelProto.FromString(proto.SerializeToString())
        folder = tmp_path / str(value)
        folder.mkdir()
        (bias,) = (t for t in copy.graph.initializer if t.name == "stem_b")
        bias.raw_data = (np.full(8, value, np.float32)).tobytes()
        onnx.save(
            copy,
            str(folder / "m.onnx"),
            save_as_external_data=True,
            location="weights.bin",
            size_threshold=0,
        )
        model = load(folder / "m.onnx")
        assert np.array_equal(model.constants["stem_b"], np.full(8, value))
        assert np.array_equal(model.constants["stem_w"], expected.constants["stem_w"])
        digests.add(model.sha256)
    assert len(digests) == 2
    (folder / "weights.bin").unlink()
    assert "external data of tensor" in error_of(folder / "m.onnx").message


def test_damaged_tensor_is_named():
    proto = residual()
    proto.graph.initializer[0].raw_data = b"abc"
    assert f"tensor {proto.graph.initializer[0].name} is damaged" in error_of(proto).message


def test_float_model_points_to_the_calibrated_stage():
    error = error_of(float_model())
    assert "is a float model" in error.message
    assert "*_calibrated_model.onnx" in error.hint
    assert error.exit_code == 3


@pytest.mark.parametrize("stage", ["optimized_float", "original_float"])
def test_float_stage_names_the_calibrated_file_beside_it(stage):
    file = FIXTURES / "textline_cls" / f"cls_{stage}_model.onnx"
    error = error_of(file)
    assert f"the converter's {stage.replace('_', ' ')} stage" in error.message
    assert f"Give {CLASSIFIER}, which" in error.hint


def test_float_stage_whose_calibrated_file_is_elsewhere_names_the_pattern(tmp_path):
    file = tmp_path / "net_optimized_float_model.onnx"
    file.write_bytes(float_model().SerializeToString())
    assert "Give the *_calibrated_model.onnx, which" in error_of(file).hint


def test_calibrated_file_in_which_nothing_is_quantized(tmp_path):
    file = tmp_path / "softmax_calibrated_model.onnx"
    (case,) = cases("zoo/bayes-e__Softmax_last_calibrated")
    file.write_bytes(case.model.SerializeToString())
    assert "its converter quantizes nothing of it" in error_of(file).message


def test_quantized_model_names_the_calibrated_file_beside_it():
    # Vendor users load it in plain ONNX Runtime and meet "no operator registered".
    error = error_of(FIXTURES / "textline_cls" / "cls_quantized_model.onnx")
    assert "is a quantized model" in error.message
    assert "HzSQuantizedConv" in error.message
    assert str(CLASSIFIER) in error.hint


def test_model_with_every_point_off_says_so():
    proto = residual()
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.name == "switch":
                attribute.s = b"OFF"
    points = sum(node.op_type == "HzCalibration" for node in proto.graph.node)
    error = error_of(proto)
    assert f"none of its {points} points quantizes anything" in error.message
    assert f"{points}: it is switched off" in error.message


@pytest.mark.parametrize("other", [None, 3, object()])
def test_argument_that_is_no_model_is_a_type_error(other):
    with pytest.raises(TypeError):
        load(other)


def test_path_that_cannot_be_one_is_refused(tmp_path):
    assert "cannot be read" in error_of(f"{tmp_path}/a\0b.onnx").message
