"""Integer against calibrated forms, node by node, and what the integers show.

Each diagnostic is triggered by a model of one or two nodes whose arithmetic is worked out here.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from hbdebug.analysis.forms import compare_forms, compare_lowered
from hbdebug.engine import Engine
from hbdebug.integer_run import IntegerRunner
from hbdebug.loading import load
from hbdebug.lowering.graph import lower_traced
from hbdebug.model import Assignment
from hbdebug.pipeline import sensitivity
from hbdebug.results import SensitivityResult
from hbdebug.samples import open_samples
from hbdebug.toolchain import all_int16
from tests import models
from tests.lowering.vendor import march_of, pair_models, pair_names
from tests.recognizer import recognizer_folder

CLASSIFIER = Path(__file__).parents[2] / "fixtures/textline_cls"
RANDOM = np.random.default_rng(5)


def lowered(builder, inputs):
    model = load(builder.proto())
    engine = Engine(model, jobs=1)
    shapes = {name: shape for name, (_, shape) in engine.profile(inputs[0]).specs.items()}
    assignment = Assignment.as_calibrated(model)
    return engine, lower_traced(model, assignment, shapes=shapes), assignment


def compared(builder, inputs):
    engine, form, assignment = lowered(builder, inputs)
    return compare_lowered(engine, form, inputs, assignment)


def only(builder, inputs):
    """Return the one node's difference, and the diagnostics by name."""
    forms = compared(builder, inputs)
    (difference,) = forms.differences
    return difference, {item.name: item for item in forms.diagnostics}


def normal(*shape):
    return [{"x": RANDOM.normal(0, 1, shape).astype(np.float32)}]


def one_node(op_type, constants=(), *, dtype="int8", into=2.0, out=2.0, **attributes):
    b = models.CalibratedModel()
    x = b.point(b.input("x", (1, 4, 8, 8)), into, dtype)
    others = [b.constant(f"c{index}", value) for index, value in enumerate(constants)]
    b.output(b.point(b.node(op_type, [x, *others], "it", **attributes), out, dtype))
    return b


def one_conv(weight, bias, *, dtype="int8", into=2.0, out=2.0, out_dtype="", **attributes):
    """A Conv; ``out`` None leaves its output in int32."""
    b = models.CalibratedModel()
    weight = np.asarray(weight, np.float32)
    x = b.point(b.input("x", (1, weight.shape[1], 6, 6)), into, dtype)
    y = b.node(
        "Conv",
        [x, b.weight("w", weight), b.constant("b", np.asarray(bias, np.float32))],
        "conv",
        kernel_shape=list(weight.shape[2:]),
        **attributes,
    )
    b.output(y if out is None else b.point(y, out, out_dtype or dtype))
    return b


def image(value, channels):
    return [{"x": np.full((1, channels, 6, 6), value, np.float32)}]


# What is compared ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("builder", "step"),
    [
        (one_node("AveragePool", kernel_shape=[3, 3]), 2 / 127),
        (one_node("HardSigmoid", alpha=0.2), 2 / 127),
        (one_node("Reciprocal", dtype="int16", out=100.0), 100 / 32767),
        (one_conv(RANDOM.normal(0, 0.4, (8, 4, 3, 3)), np.zeros(8)), 2 / 127),
    ],
    ids=["pool", "table", "int16 table", "conv"],
)
def test_of_a_model_of_one_node_the_difference_is_that_of_whole_runs(builder, step):
    shape = (1, 4, 6, 6) if "conv" in {node.name for node in builder.nodes} else (1, 4, 8, 8)
    inputs = [*normal(*shape), *normal(*shape)]

    difference, _ = only(builder, inputs)

    engine, form, assignment = lowered(builder, inputs)
    (name,) = (spec.name for spec in engine.model.outputs)
    pairs = [
        (engine.forward(x, assignment)[name], IntegerRunner(form.model).forward(x)[name])
        for x in inputs
    ]
    steps = np.abs([np.rint((theirs - ours) / np.float32(step)) for ours, theirs in pairs])
    signal = sum(np.square(ours, dtype=np.float64).sum() for ours, _ in pairs)
    noise = sum(np.square(theirs - ours, dtype=np.float64).sum() for ours, theirs in pairs)
    assert difference.samples == 2
    assert difference.max_steps == steps.max()
    assert difference.mean_steps == pytest.approx(steps.mean(dtype=np.float64), rel=1e-12)
    assert difference.share_beyond_one == np.mean(steps > 1)
    # Steps times scale in float64 here, dequantized float32 values there.
    assert difference.sqnr_db == pytest.approx(10 * np.log10(signal / noise), abs=1e-3)


def test_differences_are_not_passed_on():
    """A MaxPool behind a HardSigmoid that is off by steps is compared on equal integers."""
    b = models.CalibratedModel()
    x = b.point(b.input("x", (1, 4, 8, 8)), 4.0)
    gate = b.point(b.node("HardSigmoid", [x], "gate", alpha=0.2), 1.0)
    b.output(b.point(b.node("MaxPool", [gate], "pool", kernel_shape=[2, 2]), 1.0))

    forms = compared(b, normal(1, 4, 8, 8))

    by_name = {item.node: item for item in forms.differences}
    assert [item.node for item in forms.differences] == ["gate", "pool"]
    assert by_name["gate"].max_steps > 2
    assert by_name["pool"].max_steps == 0
    assert by_name["pool"].sqnr_db is None


def test_what_a_conv_takes_in_is_compared_as_one():
    forms_of = compared(_residual_block(), normal(1, 3, 6, 6))

    by_name = {item.node: item for item in forms_of.differences}
    assert by_name["second"].fused == ("add", "relu")
    assert {"add", "relu"}.isdisjoint(by_name)
    # Biased by half a step, rounded down, on integers: what is left is rounding at the ties.
    assert all(item.max_steps <= 1 and not item.differs_much for item in forms_of.differences)


def _residual_block():
    b = models.CalibratedModel()
    shared = b.point(b.conv(b.input("x", (1, 3, 6, 6)), (3, 3), "first"))
    y = b.conv(shared, (3, 3), "second", calibrate=False)
    b.output(b.point(b.node("Relu", [b.node("Add", [y, shared], "add")], "relu"), 4.0))
    return b


def test_a_point_behind_the_output_belongs_to_the_node():
    """MaxPool keeps the steps of its input; the change to those of the point is compared, too."""
    b = models.CalibratedModel()
    x = b.point(b.input("x", (1, 4, 8, 8)), 127.0)
    b.output(b.point(b.node("MaxPool", [x], "pool", kernel_shape=[1, 1]), 254.0))
    whole = np.arange(-128, 128, dtype=np.float32).reshape(1, 4, 8, 8)

    difference, diagnostics = only(b, [{"x": whole}])

    # q / 2: half of the q are odd, half of these round up to what is not even.
    assert difference.max_steps == 1
    assert difference.mean_steps == 0.25
    assert diagnostics["lut_input_on_tie"].evidence.startswith("50.00% of its outputs")


def test_float_nodes_are_listed_with_the_reason():
    b = models.CalibratedModel()
    x = b.conv(b.input("x", (1, 3, 6, 6)), (3, 4), "conv")
    b.output(b.node("Softmax", [x], "softmax", axis=1))

    forms = compared(b, normal(1, 3, 6, 6))

    assert [(item.name, item.op_type) for item in forms.not_compared] == [("softmax", "Softmax")]
    assert "not quantized" in forms.not_compared[0].reason


def test_an_int32_output_is_compared_with_the_float_value():
    difference, _ = only(one_conv([[[[0.5]]]], [0.25], out=None), normal(1, 1, 6, 6))

    # A bias is rounded to one of 2^-13 = 2/127 x 0.5/127, and float32 adds its own rounding.
    assert difference.max_steps <= 0.51
    assert difference.sqnr_db is not None
    assert difference.sqnr_db > 80
    assert not difference.differs_much


def test_values_that_are_not_finite_are_left_out():
    difference, _ = only(
        one_node("Log", dtype="int16", out=10.0), [{"x": np.full((1, 4, 8, 8), -1.0, np.float32)}]
    )

    assert difference.sqnr_db is None
    assert not difference.differs_much


def test_the_first_samples_are_compared_and_the_result_says_how_many(tmp_path):
    b = _residual_block()
    folder = models.save_samples(tmp_path, models.inputs_for(b.proto(), count=6))
    model = load(b.proto())
    samples = open_samples(folder, model.inputs)

    for limit, expected in ((4, 4), (10, 6)):
        forms = compare_forms(Engine(model, jobs=1), samples, "bayes-e", limit=limit)
        assert {item.samples for item in forms.differences} == {expected}


# Reasons ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("builder", "words"),
    [
        (one_node("HardSigmoid", alpha=0.2), "ignores alpha and beta"),
        (one_node("AveragePool", kernel_shape=[3, 3]), "times 56, shifted right by 9"),
        (
            one_node("AveragePool", kernel_shape=[3, 3], pads=[1] * 4),
            "counts the padding",
        ),
        (
            one_node("PRelu", [np.resize(np.array([0.1, -0.3], np.float32), (4, 1, 1))]),
            "slopes wrap around",
        ),
        (one_node("Reciprocal", dtype="int16", out=100.0), "6 x 64 entries"),
        (one_node("GlobalAveragePool", dtype="int16"), "int16 falls back to int8"),
    ],
    ids=["HardSigmoid", "AveragePool", "padding", "PRelu", "int16 table", "int8 only"],
)
def test_a_node_that_differs_much_has_its_reason(builder, words):
    difference, _ = only(builder, normal(1, 4, 8, 8))

    assert difference.differs_much
    assert words in difference.reason


@pytest.mark.parametrize(
    "builder",
    [
        one_node("HardSigmoid", alpha=1 / 6),
        one_node("PRelu", [np.full((4, 1, 1), 0.25, np.float32)]),
        one_node("HzSwish"),
        one_node("MaxPool", kernel_shape=[2, 2]),
        one_node("Exp", dtype="int16", out=10.0),
    ],
    ids=["HardSigmoid", "PRelu", "HzSwish", "MaxPool", "int16 table"],
)
def test_a_node_that_is_off_by_rounding_alone_is_not_named(builder):
    for node in builder.nodes:
        if node.op_type.startswith("Hz"):
            node.domain = "horizon"

    difference, _ = only(builder, normal(1, 4, 8, 8))

    assert not difference.differs_much
    assert difference.reason == ""


def test_an_int16_conv_whose_first_shift_is_too_coarse_says_so():
    """An int16 input is shifted by 8 bits at least, even where 256 sums are several steps."""
    # x w / y = (2/32767)(1/127)/(0.02/32767) = 0.79: one in the middle is 256 x 0.79 = 202 steps.
    builder = one_conv([[[[1.0]]]], [0.0], dtype="int16", out=0.02)
    inputs = [{"x": RANDOM.uniform(-0.015, 0.015, (1, 1, 6, 6)).astype(np.float32)}]

    difference, _ = only(builder, inputs)

    assert difference.reason == (
        "the first shift leaves accumulators in multiples of up to 202 output steps"
    )
    # The shift rounds down: up to one of these multiples is lost, and rounding.
    assert 100 < difference.max_steps <= 203


def test_nothing_known_is_said_to_be():
    """Weights changed behind the back of the derivation are nothing that a reason is known for."""
    inputs = normal(1, 3, 6, 6)
    engine, form, assignment = lowered(one_conv(np.ones((2, 3, 1, 1)), [0, 0], out=8.0), inputs)
    constants = dict(form.model.constants)
    (weight,) = (name for name in constants if name.endswith("w_quantized"))
    constants[weight] = (constants[weight] // 2).astype(np.int8)
    wrong = dataclasses.replace(form, model=dataclasses.replace(form.model, constants=constants))

    (difference,) = compare_lowered(engine, wrong, inputs, assignment).differences

    assert difference.differs_much
    assert difference.reason == "no known reason"


# Diagnostics --------------------------------------------------------------------------------------


def test_a_clipped_bias_is_a_bias_overflow():
    weight = np.array([0.5, 1e-9], np.float32).reshape(2, 1, 1, 1)

    difference, diagnostics = only(one_conv(weight, [1, 200], out=None), normal(1, 1, 6, 6))

    found = diagnostics["bias_overflow"]
    assert (found.node, found.op_type) == ("conv", "Conv")
    # 200 x 2^23 steps; 2^30 of them are 128.
    assert "200 of channel 1 is 1.68e+09 steps" in found.evidence
    assert "the bias of 1 of 2 channels does not fit" in found.evidence
    assert difference.differs_much
    assert "1 of 2 channels with a bias that is clipped" in difference.reason


def test_a_bias_that_rounds_to_nothing_is_named():
    # A step of the accumulator is 2/127 x 1/127 = 1.24e-4, one of the output 0.005/127 = 3.94e-5.
    bias = 0.45 * 2 / 127 / 127

    _, diagnostics = only(one_conv([[[[1.0]]]], [bias], out=0.005), image(0.0, 1))

    assert "5.58e-05 of channel 0 is off by 1.42 steps" in diagnostics["bias_rounded_away"].evidence
    _, diagnostics = only(one_conv([[[[1.0]]]], [bias], out=2.0), image(0.0, 1))
    assert "bias_rounded_away" not in diagnostics


def test_nearly_dead_channels_that_cost_nothing_are_said_to():
    weight = np.stack([np.full((3, 1, 1), value) for value in (0.37, 1e-9, 3e-9)])

    difference, diagnostics = only(one_conv(weight, [0, 1, -1]), normal(1, 3, 6, 6))

    found = diagnostics["near_dead_channels"]
    assert found.evidence.startswith("2 of 3 channels nearly dead (largest weight 3e-09)")
    assert "2 without any weight left" in found.evidence
    assert "off by 0 steps at most" in found.evidence
    assert found.remedy.startswith("nothing is lost")
    assert not difference.differs_much


def test_nearly_dead_channels_that_an_int16_output_shows_are_the_reason():
    # The least step of a weight is 2^-15 (100/32767) / (2/32767) = 0.00153: 0.0007 is lost, and
    # 128 of them times 1.9 are 0.17, which is 56 steps of the output.
    weight = np.stack([np.full((128, 1, 1), 0.0007), np.ones((128, 1, 1))])
    builder = one_conv(weight, [0, 0], dtype="int16", out=100.0)

    difference, diagnostics = only(builder, image(1.9, 128))

    assert difference.max_steps == pytest.approx(0.0007 * 128 * 1.9 / 100 * 32767, abs=1)
    assert difference.reason == "1 of 2 channels nearly dead, with weights in larger steps"
    assert "off by 56 steps at most" in diagnostics["near_dead_channels"].evidence
    assert "int8 output" in diagnostics["near_dead_channels"].remedy


def test_accumulators_that_wrap_are_counted():
    # 600 products of 32767 x 127 are 2.5e9, more than 2^31; the output is clipped all the same.
    builder = one_conv(np.ones((1, 600, 1, 1)), [0], dtype="int16", into=1.0, out=200.0)

    difference, diagnostics = only(builder, image(1.0, 600))

    assert difference.max_steps == 65535
    assert difference.reason == "36 of 36 accumulators wrap around at 32 bits"
    assert "to 2.5e+09" in diagnostics["accumulator_wraps"].evidence
    _, diagnostics = only(builder, image(0.5, 600))
    assert "accumulator_wraps" not in diagnostics


def test_a_middle_that_saturates_below_the_largest_output_is_named():
    """The derivation never writes such shifts."""
    inputs = image(1.0, 600)
    engine, form, assignment = lowered(
        one_conv(np.full((2, 600, 1, 1), 0.5), [0, 0], out=400.0), inputs
    )
    (conv,) = (node for node in form.model.nodes if node.name == "conv")
    # Four bits fewer in front of the product and four more behind it: the same factor, but
    # the largest int16 in between stands for 1/16 of the largest output.
    attributes = {
        **conv.attributes,
        "right_shift": [shift - 4 for shift in conv.attributes["right_shift"]],
        "out_shift": [shift + 4 for shift in conv.attributes["out_shift"]],
    }
    changed = dataclasses.replace(conv, attributes=attributes)
    steps = tuple(changed if node is conv else node for node in form.model.steps)
    wrong = dataclasses.replace(form, model=dataclasses.replace(form.model, steps=steps))

    before = compare_lowered(engine, form, inputs, assignment)
    after = compare_lowered(engine, wrong, inputs, assignment)

    assert "middle_saturates" not in {item.name for item in before.diagnostics}
    (found,) = (item for item in after.diagnostics if item.name == "middle_saturates")
    assert found.evidence.startswith("100.00% of the values between its two shifts")
    assert "2 of 2 channels" in found.evidence
    # 1.0 becomes 64 steps of 2/127, and 600 halves of that 302.4: 96 steps of the output. What is
    # left of them is the largest int16, multiplied and shifted.
    left = 32767 * attributes["scale"][0] >> attributes["out_shift"][0]
    assert left <= 15
    assert [item.max_steps for item in after.differences] == [96 - left]
    assert "saturates before the output does" in after.differences[0].reason


def test_outputs_far_beyond_the_threshold_are_named_with_their_share():
    values = np.zeros((1, 1, 6, 6), np.float32)
    values.reshape(-1)[:9] = 1.9

    _, diagnostics = only(one_conv([[[[1.0]]]], [0.0], out=0.5), [{"x": values}])

    found = diagnostics["output_saturates"]
    assert found.evidence.startswith("25.00% of its outputs are beyond the threshold 0.5")
    # 1.9 of which 1.4 is cut off.
    assert "2.7 dB below the signal" in found.evidence
    assert "in both forms" in found.evidence
    _, diagnostics = only(one_conv([[[[1.0]]]], [0.0], out=1.9), [{"x": values}])
    assert "output_saturates" not in diagnostics


def test_halves_that_the_two_forms_round_apart_are_named():
    """Two int8 operands in steps of 1, a sum in steps of 2: an odd sum is halfway."""
    b = models.CalibratedModel()
    p, q = (b.point(b.input(name, (1, 4, 6, 6)), 127.0) for name in "pq")
    b.output(b.point(b.node("Add", [p, q], "add"), 254.0))
    inputs = {
        name: RANDOM.integers(-100, 100, (1, 4, 6, 6)).astype(np.float32) for name in ("p", "q")
    }
    total = (inputs["p"] + inputs["q"]).astype(int)

    difference, diagnostics = only(b, [inputs])

    odd = total % 2 == 1
    # Half up gives (n + 1) / 2; to even gives the same where that is even.
    apart = odd & ((total + 1) // 2 % 2 == 1)
    assert difference.max_steps == 1
    assert difference.mean_steps == apart.mean()
    evidence = diagnostics["lut_input_on_tie"].evidence
    assert evidence.startswith(f"{odd.mean():.2%} of its outputs lie halfway")
    assert f"{apart.mean():.2%} of all come out one step" in evidence


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_int16_that_falls_back_is_named(dtype):
    b = models.CalibratedModel()
    p = b.point(b.input("p", (1, 4, 6, 6)), 2.0, dtype)
    q = b.point(b.input("q", (1, 4, 6, 6)), 2.0, dtype)
    b.output(b.point(b.node("MatMul", [p, q], "product"), 20.0))
    inputs = {name: RANDOM.normal(0, 1, (1, 4, 6, 6)).astype(np.float32) for name in ("p", "q")}

    _, diagnostics = only(b, [inputs])

    assert ("int16_falls_back_to_int8" in diagnostics) == (dtype == "int16")
    if dtype == "int16":
        assert "MatMul reads int8 only" in diagnostics["int16_falls_back_to_int8"].evidence


def test_an_int16_output_that_comes_in_int8_is_named():
    builder = one_conv(
        RANDOM.normal(0, 0.5, (2, 3, 3, 3)), [0, 0], out_dtype="int16", dilations=[2, 2]
    )

    difference, diagnostics = only(builder, normal(1, 3, 6, 6))

    assert "Conv gives int8 only" in diagnostics["int16_falls_back_to_int8"].evidence
    # A step of int8 is 258 of int16, and rounding is off by half of it.
    assert 1 < difference.max_steps <= 131


def random_inputs(model):
    return {
        spec.name: (RANDOM.normal(0, 1, spec.shape) * 100).astype(spec.dtype)
        for spec in model.inputs
    }


@pytest.mark.parametrize("name", pair_names())
def test_of_every_small_model_each_node_is_compared_or_listed_and_has_a_reason(name):
    model = load(pair_models(name)[0])
    inputs = [random_inputs(model)]
    engine = Engine(model, jobs=1)
    shapes = {tensor: shape for tensor, (_, shape) in engine.profile(inputs[0]).specs.items()}
    assignment = Assignment.as_calibrated(model)
    march = march_of(name)
    form = lower_traced(model, assignment, shapes=shapes, march=march)

    forms = compare_lowered(engine, form, inputs, assignment, march=march)

    compared_nodes = [node for item in forms.differences for node in (item.node, *item.fused)]
    listed = [item.name for item in forms.not_compared]
    assert sorted(compared_nodes + listed) == sorted(node.name for node in model.nodes)
    assert {item.reason for item in forms.not_compared} <= {
        "not quantized: computed alike in both forms"
    }
    assert "no known reason" not in {item.reason for item in forms.differences}


# Real models and the whole way --------------------------------------------------------------------


def test_of_the_classifier_only_the_hard_sigmoids_differ_much():
    model = load(CLASSIFIER / "cls_calibrated_model.onnx")
    samples = open_samples(CLASSIFIER / "calib", model.inputs, limit=2)

    forms = compare_forms(Engine(model, jobs=1), samples, "bayes-e")

    much = [item for item in forms.differences if item.differs_much]
    assert {item.node for item in much} == {f"HardSigmoid@{index}" for index in range(9)}
    assert {item.reason for item in much} == {"the table ignores alpha and beta of HardSigmoid"}
    # One step is what rounding the same real number in two ways can give.
    assert {item.max_steps for item in forms.differences if not item.differs_much} <= {0.0, 1.0}
    assert len(forms.differences) + len(forms.not_compared) + 22 == len(model.nodes)
    assert [item.name for item in forms.not_compared] == ["Softmax@0"]
    clipped = [item.node for item in forms.diagnostics if item.name == "output_saturates"]
    # The thresholds were calibrated on noise; the logits are what they clip most.
    assert clipped[0] == "MatMul@0"


@pytest.mark.slow
def test_of_the_recognizer_two_tables_on_ties_differ_and_dead_channels_lose_nothing():
    folder = recognizer_folder()
    model = load(folder / "rec_calibrated_model.onnx")
    samples = open_samples(folder / "calib", model.inputs, limit=4)

    forms = compare_forms(Engine(model), samples, "bayes-e")

    much = [item for item in forms.differences if item.differs_much]
    dead = [item for item in forms.diagnostics if item.name == "near_dead_channels"]
    assert len(forms.differences) == 190
    assert {item.op_type for item in much} == {"HardSigmoid"}
    assert len(much) == 2
    assert all("halves are rounded up" in item.reason for item in much)
    assert len(dead) == 13
    assert all(item.remedy.startswith("nothing is lost") for item in dead)


def test_an_assignment_can_be_compared_instead_of_the_file():
    model = load(_residual_block().proto())
    engine = Engine(model, jobs=1)
    calibrated = Assignment.as_calibrated(model)

    forms = compare_forms(
        engine,
        _Samples(normal(1, 3, 6, 6)),
        "bayes-e",
        assignment=all_int16(model, calibrated),
    )

    # No Conv takes an int16 residual in: the Add is in float then, as on the CPU.
    (add,) = [node.name for node in model.nodes if node.op_type == "Add"]
    assert add in {item.name for item in forms.not_compared}
    assert forms.differences


class _Samples:
    """The part of `Samples` that a comparison reads."""

    def __init__(self, inputs):
        self._inputs = inputs

    def __len__(self):
        return len(self._inputs)

    def __iter__(self):
        return iter(enumerate(self._inputs))


def test_the_record_holds_it_only_if_integers_are_asked_for(tmp_path):
    b = models.CalibratedModel()
    x = b.point(b.input("x", (1, 4, 8, 8)), 4.0)
    gate = b.node("HardSigmoid", [x], "gate", alpha=0.2)
    b.output(b.conv(gate, (4, 2), "head", threshold=1.0))
    proto = b.proto()
    folder = models.save_samples(tmp_path, models.inputs_for(proto, count=2))

    without = sensitivity(proto, folder, suggest=False)
    result = sensitivity(proto, folder, integers=True, suggest=False)

    assert without.form_differences == without.not_compared == ()
    assert [item.node for item in result.form_differences] == ["gate", "head"]
    assert result.form_differences[0].differs_much
    assert result.seconds["integer forms"] > 0
    assert SensitivityResult.from_json(result.to_json()).form_differences == result.form_differences


def test_where_the_integer_form_is_unknown_nothing_is_compared_and_the_report_says_why(tmp_path):
    b = models.CalibratedModel()
    x = b.point(b.conv(b.input("x", (1, 3, 6, 6)), (3, 4), "conv"))
    b.output(b.node("ArgMax", [x], "which", axis=1))
    proto = b.proto()
    folder = models.save_samples(tmp_path, models.inputs_for(proto, count=2))

    result = sensitivity(proto, folder, integers=True, suggest=False, march="nash-e")

    assert result.form_differences == ()
    (said,) = (text for text in result.warnings if "were not compared" in text)
    assert "nash-e" in said
