"""Every integer of a quantized model follows from its calibrated model.

For each node of the quantized model that holds integers, the node of the same name in the
calibrated model says what goes in, the functions of `hbdebug.lowering` what must come out.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from hbdebug.lowering.convolution import (
    convolution,
    convolution_sums,
    transposed_convolution,
)
from hbdebug.lowering.curves import curve
from hbdebug.lowering.elementwise import (
    addition,
    matrix_product,
    multiplication,
    product_step,
    subtraction,
)
from hbdebug.lowering.prelu import prelu, shift_slopes
from hbdebug.lowering.reduction import reduction, sum_step
from hbdebug.lowering.steps import constant_steps, requantization, same_step
from hbdebug.lowering.table8 import table8
from hbdebug.lowering.table16 import piecewise_table
from tests.lowering.two_layer import all_outputs
from tests.lowering.vendor import (
    Grid,
    attributes,
    classifier,
    grid_behind,
    grid_of,
    pair,
    pair_names,
)

# How many nodes of a kind the small models hold, or things that several kinds have. Three int16
# tables are off by 1 for few inputs; docs/lowering.md says why.
SMALL_MODELS = {
    "HzLeakyRelu": 1,
    "HzLut": 43,
    "HzLut2Layer": 31,
    "HzPRelu": 1,
    "HzPad": 3,
    "HzRequantize": 28,
    "HzSElementwiseAdd": 20,
    "HzSElementwiseMul": 31,
    "HzSElementwiseSub": 16,
    "HzSPRelu": 2,
    "HzSQuantizedConv": 216,
    "HzSQuantizedConvTranspose": 6,
    "HzSQuantizedGlobalAveragePool": 8,
    "HzSQuantizedMatmul": 6,
    "HzSQuantizedPreprocess": 7,
    "HzSQuantizedReduceMean": 8,
    "HzSQuantizedReduceSum": 10,
    "HardSigmoid, off by 1": 1,
    "Tanh, off by 1": 2,
    "change of steps": 3,
    "constant operand": 5,
    "matrix sums": 2,
    "residual": 12,
    "sums": 149,
    "sums, bias": 139,
}
CLASSIFIER = {
    "HzLut": 27,
    "HzSElementwiseAdd": 1,
    "HzSElementwiseMul": 9,
    "HzSQuantizedConv": 54,
    "HzSQuantizedGlobalAveragePool": 10,
    "constant operand": 1,
    "residual": 7,
}


class Comparison:
    """One pair of models, and what was compared of it."""

    def __init__(self, calibrated, quantized, march):
        self.calibrated = calibrated
        self.quantized = quantized
        self.march = march
        self.compared = Counter()
        self.differing = []

    def run(self):
        for node in self.quantized.nodes:
            check = CHECKS.get(node.op_type)
            if check is not None:
                self.node = node
                self.twin = self.calibrated.by_name.get(node.name)
                self.given = attributes(node)
                check(self)
        return self

    def note(self, kind, **pairs):
        """Compare the vendor's values (first of each pair) with ours."""
        self.compared[kind] += 1
        for what, (theirs, ours) in pairs.items():
            # A list in the file repeats what is derived once per tensor.
            if np.ndim(ours) and np.shape(theirs) != np.shape(ours):
                self.differing.append((self.node.name, what, np.shape(theirs), np.shape(ours)))
            elif (np.asarray(theirs) != ours).any():
                self.differing.append((self.node.name, what, theirs, ours))

    def constant(self, index):
        """Return the constant behind an input of the quantized node; None if it has none."""
        names = self.node.input
        return self.quantized.constants[names[index]] if len(names) > index else None

    def float_constant(self, index):
        """Return the constant of the calibrated node, in front of its HzCalibration."""
        if len(self.twin.input) <= index or not self.twin.input[index]:
            return None
        name = self.twin.input[index]
        if name in self.calibrated.producer:
            name = self.calibrated.producer[name].input[0]
        return self.calibrated.constants.get(name)

    def weight_thresholds(self):
        return Grid(self.calibrated.producer[self.twin.input[1]]).thresholds

    def input_grid(self, index=0):
        return grid_of(self.calibrated, self.twin.input[index])

    def input_bits(self, index=0):
        """Return in which width the quantized node reads its input."""
        name = self.node.input[index]
        if name in self.quantized.constants:
            return self.quantized.constants[name].dtype.itemsize * 8
        producer = self.quantized.producer.get(name)
        while producer is not None and producer.op_type in {"Transpose", "Reshape"}:
            producer = self.quantized.producer.get(producer.input[0])
        if producer is not None and producer.op_type in {"HzRequantize", "HzQuantize"}:
            return attributes(producer)["bits"]
        return self.input_grid(index).bits if self.input_grid(index) else 8

    def step_in(self, index=0):
        return self.input_grid(index).step_in(self.input_bits(index))

    def step_out(self, bits, tensor=None):
        """Return the step of the output; None if it goes out as float unquantized."""
        grid = grid_behind(self.calibrated, tensor or self.twin.output[0])
        return None if grid is None else grid.step_in(bits)

    def dequantize_step(self):
        """Return the scale of the HzDequantize behind the node."""
        name = self.node.output[0]
        while True:
            node = self.quantized.consumers[name][0]
            if node.op_type == "HzDequantize":
                return self.quantized.constants[node.input[1]]
            name = node.output[0]


def check_convolution(case):
    if case.twin is None:
        check_change_of_steps(case)
        return
    weight, bias = case.float_constant(1), case.float_constant(2)
    if case.given["high_precision_output"]:
        sums = convolution_sums(
            weight, bias, threshold=case.weight_thresholds(), input_step=case.step_in()
        )
        step = case.dequantize_step()
        case.note(
            "sums",
            weight=(case.constant(1), channels_last(sums.weight)),
            step=(step, sums.step if step.size > 1 else sums.step[:1]),
        )
        if bias is not None:
            case.note("sums, bias", bias=(case.constant(2), sums.bias))
        return
    bits = case.given["output_bit"]
    residual, end = residual_of(case)
    found = convolution(
        weight,
        bias,
        threshold=case.weight_thresholds(),
        input_step=case.step_in(),
        output_step=case.step_out(bits, end),
        input_bits=case.input_bits(),
        output_bits=bits,
        residual_step=residual,
        march=case.march,
    )
    note_convolution(case, case.node.op_type, found)
    if residual is not None:
        case.note(
            "residual",
            e_scale=(case.given["e_scale"], found.residual.multiplier),
            e_shift=(case.given["e_shift"], found.residual.shift),
        )


def note_convolution(case, kind, found):
    case.note(
        kind,
        weight=(case.constant(1), channels_last(found.weight)),
        bias=(case.constant(2), found.bias),
        bias_shift=(case.constant(3), found.bias_shift),
        right_shift=(case.given["right_shift"], found.rescale.accumulator_shift),
        scale=(case.given["scale"], found.rescale.multiplier),
        out_shift=(case.given["out_shift"], found.rescale.output_shift),
    )


def check_change_of_steps(case):
    """Check the convolution by one that bernoulli2 has in place of an HzRequantize."""
    (consumer,) = case.quantized.consumers[case.node.output[0]]
    twin = case.calibrated.by_name[consumer.name]
    channels = case.given["group"]
    found = convolution(
        np.ones((channels, 1, 1, 1), np.float32),
        None,
        threshold=np.float32(1),
        input_step=written_as(case, case.node.input[0])[0].step,
        output_step=grid_behind(case.calibrated, twin.output[0]).step,
    )
    note_convolution(case, "change of steps", found)


def residual_of(case):
    """Return the step of the residual operand, if there is one, and the last fused tensor."""
    output = case.twin.output[0]
    if not case.given.get("use_sumin"):
        return None, output
    (add,) = (node for node in case.calibrated.consumers[output] if node.op_type == "Add")
    (other,) = (name for name in add.input if name != output)
    return grid_of(case.calibrated, other).step, add.output[0]


def check_transposed_convolution(case):
    found = transposed_convolution(
        case.float_constant(1),
        case.float_constant(2),
        threshold=case.weight_thresholds(),
        input_step=case.input_grid().step_in(8),
        output_step=case.step_out(8),
        group=attributes(case.twin).get("group", 1),
    )
    case.note(
        case.node.op_type,
        weight=(case.constant(1), channels_last(found.weight)),
        bias=(case.constant(2), found.bias),
        bias_shift=(case.given["b_left_shift"], found.bias_shift),
        accu_right_shift=(case.given["accu_right_shift"], found.rescale.accumulator_shift),
        y_quant_scale=(case.given["y_quant_scale"], found.rescale.multiplier),
        y_right_shift=(case.given["y_right_shift"], found.rescale.output_shift),
    )


def channels_last(weight):
    return np.moveaxis(weight, 1, -1)


def check_elementwise(case):
    bits = case.given["output_bit"]
    steps = operand_steps(case)
    output_step = case.step_out(bits)
    if output_step is None:
        output_step = case.dequantize_step()[0]
    if case.node.op_type == "HzSElementwiseMul":
        found = multiplication(*steps, output_step, output_bits=bits, march=case.march)
        case.note(
            case.node.op_type,
            add_rounding_bias=(case.given.get("add_rounding_bias", 0), found.add_rounding_bias),
            **rescale_pairs(case, found.rescale),
        )
        return
    derive = addition if case.node.op_type == "HzSElementwiseAdd" else subtraction
    found = derive(
        *steps,
        output_step,
        first_bits=case.input_bits(0),
        second_bits=case.input_bits(1),
        output_bits=bits,
        march=case.march,
    )
    case.note(
        case.node.op_type,
        x_shift=(case.given["x_shift"], found.x_shift),
        e_scale=(case.given["e_scale"], found.e_scale),
        e_shift=(case.given.get("e_shift", 0), found.e_shift),
        rounding=(case.given.get("rounding_method", "FLOOR"), found.rounding_method),
        **rescale_pairs(case, found.rescale),
    )


def operand_steps(case):
    """Return the steps of both operands, and compare those that are constant."""
    steps = []
    for index, name in enumerate(case.twin.input):
        grid = grid_of(case.calibrated, name)
        steps.append(grid.step_in(case.input_bits(index)))
        constant = case.float_constant(index)
        if constant is not None and name in case.calibrated.producer:
            theirs = case.constant(list(case.twin.input).index(name))
            ours = constant_steps(constant, steps[-1], grid.bits)
            case.note("constant operand", values=(np.sort(theirs.ravel()), np.sort(ours.ravel())))
    return steps


def rescale_pairs(case, rescale, names=("accu_right_shift", "output_scale", "output_right_shift")):
    ours = rescale.accumulator_shift, rescale.multiplier, rescale.output_shift
    return {name: (case.given[name], value) for name, value in zip(names, ours, strict=True)}


def check_matrix_product(case):
    steps = [case.input_grid(index).step_in(8) for index in (0, 1)]
    bits = case.given["output_bit"]
    if bits == 32:
        case.note("matrix sums", step=(case.dequantize_step(), [product_step(*steps)]))
        return
    found = matrix_product(*steps, case.step_out(bits), output_bits=bits)
    names = ("right_shift", "scale", "out_shift")
    case.note(case.node.op_type, **rescale_pairs(case, found.rescale, names))


def check_reduction(case):
    bits = case.given["output_bit"]
    names = ("accu_right_shift", "scale", "out_shift")
    count = 1
    shape = shape_of(case, case.twin.input[0])
    if case.node.op_type == "HzSQuantizedGlobalAveragePool":
        count = int(np.prod(shape[2:]))
        names = ("accu_right_shift", "output_scale", "output_right_shift")
    elif case.node.op_type == "HzSQuantizedReduceMean":
        count = int(np.prod([shape[axis] for axis in attributes(case.twin)["axes"]]))
    if bits == 32:
        step = sum_step(case.step_in(), count)
        case.note("pooled sums", step=(case.dequantize_step(), [step]))
        return
    rescale = reduction(case.step_in(), case.step_out(bits), count=count, output_bits=bits)
    case.note(case.node.op_type, **rescale_pairs(case, rescale, names))


def shape_of(case, tensor):
    shapes = case.calibrated.shapes
    return shapes.get(tensor) or shapes[case.calibrated.producer[tensor].input[0]]


def function_of(case):
    constants = [
        float(case.calibrated.constants[name].reshape(-1)[0])
        for name in case.twin.input
        if name in case.calibrated.constants
    ]
    return case.twin.op_type, attributes(case.twin), constants


def check_table(case):
    output_step = case.step_out(8)
    if output_step is None:
        output_step = case.dequantize_step()[0]
    table = table8(curve(*function_of(case)), case.step_in(), output_step)
    case.note("HzLut", table=(case.constant(1).reshape(-1), table))


def check_piecewise_table(case):
    output_step = case.step_out(case.given["output_bit"])
    if output_step is None:
        output_step = case.dequantize_step()[0]
    in_softmax = any(
        node.op_type == "Sub" and case.twin.op_type == "Exp"
        for node in feeding(case.calibrated, case.twin)
    )
    found = piecewise_table(
        *function_of(case),
        input_step=case.input_grid().step_in(16),
        output_step=output_step,
        upper=0.0 if in_softmax else np.inf,
    )
    ours = {
        "bound": found.bound,
        "scale": found.scale,
        "bias": found.bias,
        "left_shift": found.left_shift,
        "right_shift": found.right_shift,
        "table_param": found.table,
    }
    theirs = {name: np.array(case.given[name]) for name in ours}
    symmetry = case.given.get("symmetry_mode", "NONE")
    difference = np.abs(all_outputs(ours, found.symmetry) - all_outputs(theirs, symmetry))
    largest = int(difference.max())
    case.note("HzLut2Layer", symmetry=(symmetry, found.symmetry))
    if largest:
        case.compared[f"{case.twin.op_type}, off by {largest}"] += 1


def feeding(model, node):
    """Return the nodes in front of a node, through its HzCalibration."""
    producer = model.producer.get(node.input[0])
    while producer is not None and producer.op_type == "HzCalibration":
        producer = model.producer.get(producer.input[0])
    return [] if producer is None else [producer]


def check_prelu(case):
    slope = case.float_constant(1)
    bits = case.input_grid().bits
    found = prelu(slope, case.input_grid().step, bits)
    pairs = rescale_pairs(
        case, found.rescale, ("accu_right_shift", "negative_scale", "negative_right_shift")
    )
    case.note("HzSPRelu", slope=(case.constant(1).reshape(-1), found.slope.reshape(-1)), **pairs)


def check_shift_slopes(case):
    slope = case.float_constant(1)
    if slope is None:
        slope = np.float32(attributes(case.twin)["alpha"])
    found = shift_slopes(np.asarray(slope).reshape(-1) if np.ndim(slope) else slope)
    case.note(
        case.node.op_type,
        alpha_scale=(case.given["alpha_scale"], found.scale),
        alpha_shift=(case.given["alpha_shift"], found.shift),
    )


def check_pad(case):
    value = constant_steps(case.float_constant(2), case.step_in(), case.input_bits())
    case.note("HzPad", value=(case.constant(1), value.reshape(-1)))


def check_requantization(case):
    grid, bits = written_as(case, case.node.input[0])
    source = grid.step_in(bits)
    target = requantized_to(case).step_in(case.given["bits"])
    found = requantization(source, target)
    case.note(
        "HzRequantize",
        output_scale=(case.given["output_scale"], found.multiplier),
        output_right_shift=(case.given["output_right_shift"], found.shift),
    )
    assert not same_step(source, target)


def requantized_to(case):
    """Return the grid that an HzRequantize leads to."""
    tensor = case.node.name.removesuffix("_Requantize")
    (consumer,) = case.quantized.consumers[case.node.output[0]]
    twin = case.calibrated.by_name.get(consumer.name)
    if consumer.op_type == "Concat":
        return grid_behind(case.calibrated, twin.output[0])
    if consumer.op_type in {"Max", "Min"}:
        return grid_of(case.calibrated, twin.input[0])
    return grid_behind(case.calibrated, tensor) or grid_of(case.calibrated, tensor)


def written_as(case, tensor):
    """Return the grid of a tensor of the quantized model, and the width it is written in."""
    node = case.quantized.producer[tensor]
    given = attributes(node)
    if node.op_type == "HzRequantize":
        name = node.name.removesuffix("_Requantize")
        return grid_behind(case.calibrated, name) or grid_of(case.calibrated, name), given["bits"]
    if node.op_type == "Transpose":
        return written_as(case, node.input[0])
    name = tensor.removesuffix("_quantized")
    if node.op_type == "HzQuantize":
        return grid_of(case.calibrated, name), given["bits"]
    bits = given.get("output_bit") or written_as(case, node.input[0])[1]
    if node.op_type in {"Max", "Min"}:
        return written_as(case, node.input[0])
    return grid_behind(case.calibrated, name), bits


CHECKS = {
    "HzLeakyRelu": check_shift_slopes,
    "HzLut": check_table,
    "HzLut2Layer": check_piecewise_table,
    "HzPRelu": check_shift_slopes,
    "HzPad": check_pad,
    "HzRequantize": check_requantization,
    "HzSElementwiseAdd": check_elementwise,
    "HzSElementwiseMul": check_elementwise,
    "HzSElementwiseSub": check_elementwise,
    "HzSPRelu": check_prelu,
    "HzSQuantizedConv": check_convolution,
    "HzSQuantizedConvTranspose": check_transposed_convolution,
    "HzSQuantizedGlobalAveragePool": check_reduction,
    "HzSQuantizedMatmul": check_matrix_product,
    "HzSQuantizedPreprocess": check_convolution,
    "HzSQuantizedReduceMean": check_reduction,
    "HzSQuantizedReduceSum": check_reduction,
}


@pytest.mark.parametrize("name", pair_names())
def test_the_integers_of_a_small_model_follow_from_its_calibrated_form(name):
    case = compared_small_model(name)

    assert not case.differing


def compared_small_model(name):
    march = "bernoulli2" if "bernoulli2" in name else "bayes-e"
    return Comparison(*pair(name), march).run()


def test_all_kinds_of_nodes_were_compared_in_the_small_models():
    compared = sum((compared_small_model(name).compared for name in pair_names()), Counter())

    assert compared == SMALL_MODELS


def test_the_integers_of_the_classifier_follow_from_its_calibrated_form():
    case = Comparison(*classifier(), "bayes-e").run()

    assert not case.differing
    assert case.compared == CLASSIFIER
