"""From calibrated to integers: every integer the converter writes, from thresholds and weights.

A calibrated model says in which steps each tensor is counted. What the chip needs besides is
integers: weights and biases in steps, and for every node a multiplier and shifts that lead from
the steps of its inputs to those of its output, or a table. The modules here derive them, one
family of operators each, as pure functions of the calibrated model's numbers:

* `hbdebug.lowering.mantissa`: real factors as integer multipliers and shifts
* `hbdebug.lowering.steps`: the steps (scales) themselves, constants, requantization
* `hbdebug.lowering.convolution`: Conv and ConvTranspose
* `hbdebug.lowering.elementwise`: Mul, Add, Sub, MatMul
* `hbdebug.lowering.reduction`: GlobalAveragePool, ReduceMean, ReduceSum
* `hbdebug.lowering.prelu`: PRelu and LeakyRelu
* `hbdebug.lowering.resize`: Resize
* `hbdebug.lowering.curves`: the functions that tables hold
* `hbdebug.lowering.table8`: tables of 256 entries for int8
* `hbdebug.lowering.borders`, `hbdebug.lowering.table16`: piecewise tables for int16

On top of them, `hbdebug.lowering.graph.lower` writes the integer model of a calibrated model under
any assignment: `hbdebug.lowering.islands` says what stays float, `hbdebug.lowering.placement`
which points are left out there, `hbdebug.lowering.fusion` what runs together,
`hbdebug.lowering.nodes`, `hbdebug.lowering.elementwise_nodes` and
`hbdebug.lowering.image_nodes` write single nodes, `hbdebug.lowering.writer` holds the graph.
`hbdebug.lowering.settled` takes the points out that an assignment leaves in float, and
`hbdebug.lowering.layout` moves Transposes to where the converter has them, by means of
`hbdebug.lowering.rewriting`.

``docs/lowering.md`` tells the formulas in one place, and how each was verified.
"""
