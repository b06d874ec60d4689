"""The exported node lists read back as they were written, by hbdebug and by a plain yaml reader."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hbdebug.errors import UsageError
from hbdebug.report.configs import node_config, read_node_config

AWKWARD = (
    "Conv_60",
    "MatMul@0_transpose_0_reshape",
    "/model.10/m/m.0/attn/MatMul_1",
    "a: b",
    "a #b",
    "#a",
    "\"double\" and 'single'",
    "back\\slash",
    "卷积/1",
    "no",
    "~",
    "null",
    "1e-05",
    "0x10",
    "2024-01-01",
    "{a}",
    "[a]",
    "*a",
    "&a",
    "!a",
    "%a",
    "? a",
    "- a",
    "a\tb",
    "a\u2028b",
    "x" * 300,
    "😀",
)
MARCHES = ("bayes", "bayes-e", "nash-e", "nash-p")


@pytest.mark.parametrize("march", MARCHES)
def test_awkward_names_come_back_with_their_settings_in_order(march):
    nodes = {name: ("cpu", "int16")[index % 2] for index, name in enumerate(AWKWARD)}

    text = node_config(nodes, march)

    assert list(read_node_config(text, march).items()) == list(nodes.items())


def test_a_plain_yaml_reader_sees_the_node_info_of_the_vendors_examples():
    yaml = pytest.importorskip("yaml")
    nodes = {name: ("cpu", "int16")[index % 2] for index, name in enumerate(AWKWARD)}

    document = yaml.safe_load(node_config(nodes, "bayes-e", header=["a: b", "c"]))

    said = {"cpu": {"ON": "CPU"}, "int16": {"ON": "BPU", "InputType": "int16"}}
    assert document == {
        "model_parameters": {"node_info": {name: said[setting] for name, setting in nodes.items()}}
    }


def test_bernoulli2_gets_one_string_of_names():
    text = node_config({"Conv_3": "cpu", "a: b": "cpu"}, "bernoulli2")

    assert text == 'calibration_parameters:\n  run_on_cpu: "Conv_3; a: b"\n'
    assert read_node_config(text, "bernoulli2") == {"Conv_3": "cpu", "a: b": "cpu"}


def test_nash_says_who_reads_it_and_uses_qtype():
    text = node_config({"/a/MatMul_1": "int16", "b": "cpu"}, "nash-m")

    assert "# hb_compile reads this" in text
    assert '"/a/MatMul_1": {"qtype": "int16"}' in text
    assert '"b": {"qtype": "float32"}' in text


def test_one_line_of_the_file_for_one_node():
    text = node_config({"a" * 100: "cpu", "b": "int16"}, "bayes-e")

    assert text.splitlines()[2:] == [
        f'    "{"a" * 100}": {{"ON": "CPU"}}',
        '    "b": {"ON": "BPU", "InputType": "int16"}',
    ]


@pytest.mark.parametrize("march", [*MARCHES, "bernoulli2"])
def test_without_nodes_the_file_is_valid_and_says_so(march):
    text = node_config({}, march, header=["first"])

    assert text.startswith("# first\n# No node is set")
    assert read_node_config(text, march) == {}


def test_a_header_cannot_leave_its_comment():
    text = node_config({"a": "cpu"}, "bayes-e", header=["x\nmodel_parameters: 1", "bell \x07", ""])

    assert text.startswith("# x\n# model_parameters: 1\n# bell\n#\nmodel_parameters:\n")
    assert read_node_config(text, "bayes-e") == {"a": "cpu"}


@pytest.mark.parametrize("name", ["a;b", " a", "a ", ""])
def test_a_name_that_run_on_cpu_cannot_hold_is_an_error(name):
    with pytest.raises(UsageError, match="run_on_cpu cannot hold"):
        node_config({name: "cpu"}, "bernoulli2")


def test_int16_on_bernoulli2_is_an_error():
    with pytest.raises(UsageError, match="bernoulli2 has no int16"):
        node_config({"a": "int16"}, "bernoulli2")


def test_an_unknown_setting_or_march_is_an_error():
    with pytest.raises(UsageError, match="unknown setting 'gpu'"):
        node_config({"a": "gpu"}, "bayes-e")
    with pytest.raises(UsageError, match="no configuration dialect"):
        node_config({"a": "cpu"}, "bayesian")


def test_a_whole_configuration_of_the_user_is_read():
    text = """
    model_parameters:
      onnx_model: m.onnx
      node_info: {"Conv_60": {'ON': 'CPU'}, "b": {'ON': 'BPU', 'InputType': 'int16'},
                  "c": {'ON': 'BPU'}}
    calibration_parameters:
      run_on_cpu: 'x;  y ;'
      quant_config: {node_config: {n: {qtype: float16}, o: {qtype: int8}}}
    """

    assert read_node_config(text, "bayes") == {"Conv_60": "cpu", "b": "int16"}
    assert read_node_config(text, "bernoulli2") == {"x": "cpu", "y": "cpu"}
    assert read_node_config(text, "nash-e") == {"n": "cpu"}


@pytest.mark.parametrize(
    "text", ["{", "- a", "model_parameters: 3", "model_parameters: {node_info: {a: CPU}}"]
)
def test_what_is_no_such_configuration_is_an_error(text):
    with pytest.raises(UsageError):
        read_node_config(text, "bayes-e")


@pytest.mark.property
@given(
    nodes=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])), st.sampled_from(["cpu", "int16"])
    ),
    march=st.sampled_from(MARCHES),
)
def test_any_names_come_back(nodes, march):
    assert read_node_config(node_config(nodes, march), march) == nodes
