"""Weights in files of their own: mapped, in the digest, only from the model's folder."""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hbdebug.engine import Engine
from hbdebug.errors import ModelError
from hbdebug.jump import same_bits
from hbdebug.loading import external, load, protobuf
from hbdebug.loading.repair import repair_hard_sigmoids
from tests import models
from tests.models import CalibratedModel, residual

_GIB = 1 << 30


def saved(proto, folder, location="weights.bin", **settings):
    """Save a copy of a model with all of its initializers in one file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / location).parent.mkdir(parents=True, exist_ok=True)
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    onnx.save(
        copy,
        str(folder / "m.onnx"),
        save_as_external_data=True,
        location=location,
        size_threshold=0,
        **settings,
    )
    return folder / "m.onnx"


def edited(path, change, tensor="stem_w"):
    """Change the external_data of one initializer of a file, without reading the data."""
    proto = onnx.load(str(path), load_external_data=False)
    (found,) = (item for item in proto.graph.initializer if item.name == tensor)
    entries = {entry.key: entry.value for entry in found.external_data}
    change(entries, found)
    del found.external_data[:]
    for key, value in entries.items():
        found.external_data.add(key=key, value=str(value))
    path.write_bytes(proto.SerializeToString())
    return path


def error_of(path):
    with pytest.raises(ModelError) as caught:
        load(path)
    return caught.value


def test_external_weights_are_mapped_and_not_copied(tmp_path):
    path = saved(residual(), tmp_path)

    model = load(path)

    expected = load(residual())
    for name, value in expected.constants.items():
        assert same_bits(model.constants[name], value)
    weights = [model.constants[name] for name in ("stem_w", "head_w") if name in model.constants]
    assert weights
    for weight in weights:
        assert not weight.flags.owndata
        assert not weight.flags.writeable


def test_a_model_runs_from_mapped_weights_as_from_its_own(tmp_path):
    proto = residual()
    inputs = models.inputs_for(proto, count=1)[0]

    outputs = [Engine(load(each)).forward(inputs) for each in (proto, saved(proto, tmp_path))]

    for name, expected in outputs[0].items():
        assert same_bits(outputs[1][name], expected)


def test_case_75_a_relative_path_into_a_subfolder_is_kept(tmp_path, monkeypatch):
    path = saved(residual(), tmp_path / "model", "weights/part/0.bin")
    monkeypatch.chdir(tmp_path)

    for given in (path, path.relative_to(tmp_path)):
        assert same_bits(load(given).constants["stem_w"], load(residual()).constants["stem_w"])


def test_a_link_inside_of_the_folder_is_followed(tmp_path):
    path = saved(residual(), tmp_path)
    (tmp_path / "weights.bin").rename(tmp_path / "blob")
    (tmp_path / "weights.bin").symlink_to("blob")

    assert same_bits(load(path).constants["stem_w"], load(residual()).constants["stem_w"])


def _elsewhere(tmp_path, location):
    folder = tmp_path / "model"
    path = saved(residual(), folder)
    (folder / "weights.bin").rename(tmp_path / "weights.bin")
    return edited(path, lambda entries, _: entries.update(location=location))


@pytest.mark.parametrize(
    "location",
    [
        "../weights.bin",
        "sub/../../weights.bin",
        "..\\weights.bin",
        "C:\\weights.bin",
        "\\\\server\\weights.bin",
        "/etc/passwd",
        "",
        "weights\0.bin",
    ],
)
def test_data_outside_of_the_models_folder_are_refused(tmp_path, location):
    error = error_of(_elsewhere(tmp_path, location))

    assert "stem_w" in error.message
    assert "not inside the model's folder" in error.message
    assert error.hint
    assert error.exit_code == 3


def test_an_absolute_path_is_refused_even_into_the_folder(tmp_path):
    path = saved(residual(), tmp_path)
    edited(path, lambda entries, _: entries.update(location=str(tmp_path / "weights.bin")))

    assert "not inside the model's folder" in error_of(path).message


def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path):
    path = _elsewhere(tmp_path, "link.bin")
    (tmp_path / "model" / "link.bin").symlink_to(tmp_path / "weights.bin")

    assert "not inside the model's folder" in error_of(path).message


def test_a_folder_that_is_a_link_out_of_the_models_is_refused(tmp_path):
    path = _elsewhere(tmp_path, "sub/weights.bin")
    (tmp_path / "model" / "sub").symlink_to(tmp_path, target_is_directory=True)

    assert "not inside the model's folder" in error_of(path).message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda entries, _: entries.update(location="missing.bin"), "No such file"),
        (lambda entries, _: entries.update(location="."), "is no regular file"),
        (lambda entries, _: entries.update(location="fifo"), "is no regular file"),
        (lambda entries, _: entries.update(offset="-8"), "the file has"),
        (lambda entries, _: entries.update(offset="1000000"), "the file has"),
        (lambda entries, _: entries.update(offset="ten"), "no number"),
        (lambda entries, _: entries.update(length="4"), "4 bytes are stated"),
        (lambda _, tensor: tensor.dims.__setitem__(0, 1 << 60), "are stated"),
        (lambda _, tensor: tensor.dims.__setitem__(0, -8), "its shape is"),
        (lambda _, tensor: setattr(tensor, "data_type", TensorProto.STRING), "STRING"),
        (lambda _, tensor: setattr(tensor, "data_type", 99), "99"),
    ],
)
def test_what_does_not_fit_the_file_is_refused(tmp_path, change, words):
    path = edited(saved(residual(), tmp_path), change)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "fifo")
    elif words == "is no regular file":
        pytest.skip("this system has no named pipes")

    error = error_of(path)

    assert words in error.message
    assert "stem_w" in error.message


def test_a_file_that_is_cut_short_is_refused(tmp_path):
    path = saved(residual(), tmp_path)
    data = (tmp_path / "weights.bin").read_bytes()
    (tmp_path / "weights.bin").write_bytes(data[:-1])

    error = error_of(path)

    assert f"the file has {len(data) - 1}" in error.message
    assert "cut short" in error.hint


def test_values_at_an_odd_address_are_read_right(tmp_path):
    path = saved(residual(), tmp_path)
    data = (tmp_path / "weights.bin").read_bytes()
    (tmp_path / "weights.bin").write_bytes(b"?" + data)
    proto = onnx.load(str(path), load_external_data=False)
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "offset":
                entry.value = str(int(entry.value) + 1)
        if all(entry.key != "offset" for entry in tensor.external_data):
            tensor.external_data.add(key="offset", value="1")
    path.write_bytes(proto.SerializeToString())

    model = load(path)

    assert same_bits(model.constants["stem_w"], load(residual()).constants["stem_w"])
    assert model.constants["stem_w"].flags.aligned


def test_the_digest_covers_what_tensors_use_of_the_file(tmp_path):
    path = saved(residual(), tmp_path)
    before = load(path).sha256
    file = tmp_path / "weights.bin"
    data = bytearray(file.read_bytes())

    file.write_bytes(data + b"more that no tensor uses")
    assert load(path).sha256 == before

    data[-1] ^= 1
    file.write_bytes(data)
    assert load(path).sha256 != before


def test_tensors_that_share_bytes_count_once_for_the_digest(tmp_path, monkeypatch):
    """A file could otherwise keep the digest busy for days: each of its tensors all of the data."""
    b = CalibratedModel()
    x = b.point(b.input("x", (1, 4)))
    for index in range(50):
        tensor = TensorProto(name=f"c{index}", data_type=TensorProto.FLOAT, dims=[2, 4])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "values.bin"), ("offset", 4 * (index % 3)), ("length", 32)):
            tensor.external_data.add(key=key, value=str(value))
        b.initializers.append(tensor)
        x = b.node("Add", [x, f"c{index}"])
    b.output(x)
    (tmp_path / "values.bin").write_bytes(np.arange(16, dtype=np.float32).tobytes())
    (tmp_path / "m.onnx").write_bytes(b.proto().SerializeToString())
    taken = []
    original = external._take_in
    monkeypatch.setattr(
        external, "_take_in", lambda *where: taken.append(where[2:]) or original(*where)
    )

    model = load(tmp_path / "m.onnx")

    assert sum(length for _, length in taken) == 40
    assert np.array_equal(model.constants["c1"], np.arange(1, 9, dtype=np.float32).reshape(2, 4))


def test_more_than_a_message_can_hold_in_subgraphs_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(external, "_MOST_INSIDE", 20)
    b = CalibratedModel()
    x = b.point(b.input("x", (1, 4)))
    branches = []
    for name in ("one", "two"):
        tensor = onnx.numpy_helper.from_array(np.ones(4, np.float32), name)
        _put_outside(tensor, 0)
        branches.append(
            helper.make_graph(
                [helper.make_node("Identity", [name], [f"{name}_out"])],
                name,
                [],
                [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, [4])],
                [tensor],
            )
        )
    b.constant("yes", np.array([True]).reshape(()))
    chosen = b.node("If", ["yes"], "if", then_branch=branches[0], else_branch=branches[1])
    b.output(b.node("Add", [x, chosen]))
    (tmp_path / "values.bin").write_bytes(bytes(16))
    (tmp_path / "m.onnx").write_bytes(b.proto().SerializeToString())

    assert "inside of subgraphs take more than 2 GB" in error_of(tmp_path / "m.onnx").message


def test_a_tensor_of_a_constant_node_and_one_of_a_subgraph_may_be_external(tmp_path):
    b = CalibratedModel()
    x = b.point(b.input("x", (1, 4)))
    value = np.arange(4, dtype=np.float32)
    constant = helper.make_node(
        "Constant", [], ["c"], name="c", value=onnx.numpy_helper.from_array(value, "c")
    )
    b.nodes.append(constant)
    branch = helper.make_graph(
        [helper.make_node("Identity", ["inner"], ["chosen"])],
        "branch",
        [],
        [helper.make_tensor_value_info("chosen", TensorProto.FLOAT, [4])],
        [onnx.numpy_helper.from_array(value * 2, "inner")],
    )
    b.constant("yes", np.array([True]).reshape(()))
    chosen = b.node("If", ["yes"], "if", then_branch=branch, else_branch=branch)
    b.output(b.node("Add", [b.node("Add", [x, "c"]), chosen], "sum"))
    proto = b.proto()
    inputs = {"x": np.ones((1, 4), np.float32)}
    expected = Engine(load(proto)).forward(inputs)
    (tmp_path / "values.bin").write_bytes(value.tobytes() + (value * 2).tobytes())
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.name == "value":
                _put_outside(attribute.t, 0)
            elif attribute.HasField("g"):
                _put_outside(attribute.g.initializer[0], 16)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())

    outputs = Engine(load(tmp_path / "m.onnx")).forward(inputs)

    for name, array in expected.items():
        assert same_bits(outputs[name], array)


def _put_outside(tensor, offset):
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, entry in (("location", "values.bin"), ("offset", str(offset)), ("length", "16")):
        tensor.external_data.add(key=key, value=entry)


@pytest.mark.parametrize("name", ["BFLOAT16", "INT4", "UINT4", "FLOAT8E4M3FN", "FLOAT16", "INT8"])
def test_every_type_is_read_as_onnx_reads_it(tmp_path, name):
    data_type = getattr(TensorProto, name, None)
    if data_type is None:
        pytest.skip("this onnx does not have the type")
    inside = helper.make_tensor("t", data_type, [3], [1, 2, -3 if name != "UINT4" else 3])
    if not inside.raw_data:
        inside = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(inside), "t")
        if inside.data_type != data_type:
            pytest.skip("this onnx has no array of the type")
    expected = onnx.numpy_helper.to_array(inside)
    (tmp_path / "t.bin").write_bytes(inside.raw_data)
    outside = TensorProto(
        name="t", data_type=data_type, dims=[3], data_location=TensorProto.EXTERNAL
    )
    outside.external_data.add(key="location", value="t.bin")
    graph = helper.make_graph([helper.make_node("Identity", ["t"], ["y"])], "g", [], [], [outside])
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())

    file = protobuf.read_model(path)

    (tensor,) = file.proto.graph.initializer
    assert np.array_equal(protobuf.array(tensor), expected)


def test_repair_writes_external_weights_into_the_new_file(tmp_path):
    path = saved(residual(), tmp_path)

    repaired = onnx.ModelProto.FromString(repair_hard_sigmoids(path).content)

    assert not any(external.is_external(tensor) for tensor in repaired.graph.initializer)
    before = {tensor.name: tensor.raw_data for tensor in residual().graph.initializer}
    assert {tensor.name: tensor.raw_data for tensor in repaired.graph.initializer} == before


def sparse_model(path, gigabytes):
    """Write a model with one large weight of zeros, in a file that takes no room on the disk."""
    b = CalibratedModel()
    x = b.point(b.input("x", (1, 1024)))
    rows = int(gigabytes * _GIB) // (4 * 1024)
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1024, rows])
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", 0), ("length", 4 * 1024 * rows)):
        weight.external_data.add(key=key, value=str(value))
    b.initializers.append(weight)
    y = b.node("MatMul", [x, "w"], "matmul")
    b.output(b.node("ReduceMax", [y], "max", axes=[1]))
    with (path.parent / "w.bin").open("wb") as file:
        file.truncate(4 * 1024 * rows)
    path.write_bytes(b.proto().SerializeToString())
    return path


@pytest.mark.slow
def test_case_74_a_model_beyond_two_gigabytes_is_loaded_and_run(tmp_path):
    path = sparse_model(tmp_path / "m.onnx", 2.1)

    model = load(path)

    assert model.constants["w"].nbytes > 2 * _GIB
    assert not model.constants["w"].flags.owndata
    outputs = Engine(model).forward({"x": np.ones((1, 1024), np.float32)})
    assert np.array_equal(outputs["max_out"], [[0.0]])


def test_a_large_message_in_memory_is_not_serialized(monkeypatch):
    proto = residual()
    whole = load(proto)
    monkeypatch.setattr(protobuf, "_LARGEST_COPIED", 0)

    model = load(proto)

    for name, value in whole.constants.items():
        assert same_bits(model.constants[name], value)
    changed = residual()
    raw = bytearray(changed.graph.initializer[-1].raw_data)
    raw[0] ^= 1
    changed.graph.initializer[-1].raw_data = bytes(raw)
    renamed = residual()
    renamed.graph.name = "another"
    digests = [load(each).sha256 for each in (proto, residual(), changed, renamed)]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    assert proto == residual()


def test_a_file_beyond_what_protobuf_can_hold_says_so(tmp_path):
    path = tmp_path / "m.onnx"
    with path.open("wb") as file:
        file.truncate(1 << 31)

    error = error_of(path)

    assert "larger than 2 GB" in error.message
    assert "external data" in error.hint
