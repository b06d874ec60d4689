"""The float model that a quantized one was made of gives back the weights that it lost.

Names, order and form of the operators differ from exporter to exporter and from optimizer to
optimizer, so nothing is matched by name. Where a constant is read, seen from the skeletons of the
two graphs (`hbdebug.loading.skeleton`), gives the candidates; its values, which quantization
changes but little, choose among them and reject what does not belong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.errors import ModelError
from hbdebug.loading.closeness import Closeness, Sketch, closeness
from hbdebug.loading.float_graph import in_words, skeleton_of_float
from hbdebug.loading.operands import Operands
from hbdebug.loading.places import PLACED, RULES, Places, Surroundings
from hbdebug.loading.protobuf import ModelFile, read_model
from hbdebug.loading.skeleton import Skeleton
from hbdebug.model import Point

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from hbdebug.loading.skeleton import Affine, Anchor, Site
    from hbdebug.model import QuantModel

    Array = NDArray[Any]

# Share of values within one step of the stored ones where all were rounded, and where rounding was
# followed by an adjustment such as training or error compensation.
_ROUNDED = 0.99
_MOSTLY = 0.5


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Originals:
    """What `match_originals` found.

    Attributes:
        found: Constant -> its original values, in the shape and dtype of the constant.
        unmatched: Constant -> why there are none, in words for the user.
        source: Constant -> which float constant they are, of which node, and how it was found.
    """

    found: Mapping[str, Array]
    unmatched: Mapping[str, str]
    source: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Candidate:
    """Values of the float model that may be the original.

    Attributes:
        level: How well the places fit, a key of `RULES`.
        values: In the layout that both graphs share.
        source: What they are, in words for the user.
        expected: Whether as much is folded in as is missing in the quantized model.
    """

    level: int
    values: Array
    source: str
    expected: bool = True


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Outcome:
    """What became of one place where a constant is read.

    Attributes:
        level: How well the places fit; 0 without a candidate.
        close: How close the values are.
        values: Original values in the constant's own layout; None when rejected.
        text: The source, or the reason for the rejection.
    """

    level: int
    close: Closeness | None
    values: Array | None
    text: str


def match_originals(
    model: QuantModel,
    wanted: Collection[str],
    float_file: ModelFile | str | os.PathLike[str],
) -> Originals:
    """Find the float values that constants of a quantized model were made of.

    Args:
        model: A model whose constants hold dequantized values; its points are looked through.
        wanted: Names of constants: weights, biases and other operands.
        float_file: The float model that was quantized: a path, or what `read_model` returned.

    Returns:
        Every wanted constant is in either ``found`` or ``unmatched``. Where the quantizer folded
        a BatchNormalization or the like into a weight, so are the original values.

    Raises:
        ModelError: The float model cannot be read, is quantized itself, or is another network.
    """
    file = float_file if isinstance(float_file, ModelFile) else read_model(float_file)
    # A model may hold NaN, infinities and variances of zero; they match nothing.
    with np.errstate(all="ignore"):
        return _matched(model, wanted, file)


def _matched(model: QuantModel, wanted: Collection[str], file: ModelFile) -> Originals:
    try:
        other = skeleton_of_float(file, model)
    except ModelError as error:
        error.where = f"{file.path}: {error.where}" if error.where else file.path
        raise
    matcher = _Matcher(model, _skeleton_of_twin(model), other)
    found: dict[str, Array] = {}
    unmatched: dict[str, str] = {}
    source: dict[str, str] = {}
    for constant in wanted:
        outcome = matcher.match(constant)
        if outcome.values is None:
            unmatched[constant] = outcome.text
        else:
            stored = model.constants[constant]
            found[constant] = np.asarray(outcome.values, stored.dtype, order="C")
            source[constant] = outcome.text
    return Originals(found=found, unmatched=unmatched, source=source)


def _skeleton_of_twin(model: QuantModel) -> Skeleton:
    """Return the skeleton of a model without its points."""
    fronts = {point.output: model.in_front_of_points(point.output) for point in model.points}
    return Skeleton(
        [node.reading(fronts) for node in model.nodes],
        model.constants,
        [spec.name for spec in model.inputs],
        [fronts.get(spec.name, spec.name) for spec in model.outputs],
    )


class _Matcher:
    """Matches two skeletons: first the weights of anchors, then, around them, all the rest.

    Args:
        model: The quantized model.
        twin: Its skeleton.
        other: The skeleton of the float model.
    """

    def __init__(self, model: QuantModel, twin: Skeleton, other: Skeleton) -> None:
        self._model = model
        self._twin = twin
        self._other = other
        self._levels = Places(twin, other)
        # Anchor of the twin -> what became of its weight; and anchors of the float model, the
        # best first, that it may be.
        self._outcomes: dict[int, _Outcome] = {}
        self._partners: dict[int, list[int]] = {}
        self._match_anchors()
        self._anchors_of: dict[str, list[int]] = {}
        for number, anchor in enumerate(twin.anchors):
            if anchor.weight is not None:
                name = anchor.weight.held.constant
                self._anchors_of.setdefault(name, []).append(number)
        self._sites_of: dict[str, list[Site]] = {}
        for site in twin.sites:
            self._sites_of.setdefault(site.held.constant, []).append(site)
        self._adds = {
            id(site): number for number, anchor in enumerate(twin.anchors) for site in anchor.added
        }
        self._operands = Operands(other.sites, Surroundings(self._partners, twin, other))

    def match(self, constant: str) -> _Outcome:
        """Return the best of what became of the places where a constant is read."""
        outcomes = [self._outcomes[number] for number in self._anchors_of.get(constant, ())]
        outcomes += [self._match_site(site) for site in self._sites_of.get(constant, ())]
        if not outcomes:
            return _Outcome(level=0, close=None, values=None, text="no operator reads it as floats")
        return max(outcomes, key=_goodness)

    # Weights of anchors.

    def _match_anchors(self) -> None:
        groups: dict[object, tuple[list[int], list[int]]] = {}
        for side, skeleton in enumerate((self._twin, self._other)):
            for number, anchor in enumerate(skeleton.anchors):
                if anchor.weight is not None:
                    groups.setdefault(anchor.key, ([], []))[side].append(number)
        for rows, columns in groups.values():
            if columns:
                self._match_group(rows, columns)
            else:
                for row in rows:
                    self._outcomes[row] = self._without_like(self._twin.anchors[row])

    def _without_like(self, anchor: Anchor) -> _Outcome:
        assert anchor.weight is not None
        shape = in_words(self._model.constants[anchor.weight.held.constant].shape)
        text = f"the float model has no weight like this {shape} of {anchor.weight.node.op_type}"
        return _Outcome(level=0, close=None, values=None, text=text)

    def _match_group(self, rows: Sequence[int], columns: Sequence[int]) -> None:
        """Match anchors that have the same operator and weights of the same shape."""
        if not rows:
            return
        first = self._twin.anchors[rows[0]].weight
        assert first is not None
        sketch = Sketch(first.held.values.shape)
        stored = np.stack([sketch.of(self._twin.anchors[row].scaled(None)) for row in rows])
        owners: list[int] = []
        drawn = []
        for index, column in enumerate(columns):
            for scale, _ in _distinct(self._other.anchors[column]):
                drawn.append(sketch.of(self._other.anchors[column].scaled(scale)))
                owners.append(index)
        close = sketch.compare(stored, np.stack(drawn), np.asarray(owners))
        levels = self._levels.between(rows, columns)
        score = close.band * 1000.0 + levels * 10.0 - np.minimum(close.distance, 5.0)
        order = np.argsort(-score, axis=None, kind="stable")
        partner: dict[int, int] = {}
        taken: set[int] = set()
        for row, column in zip(*np.unravel_index(order, score.shape), strict=True):
            if row not in partner and column not in taken:
                partner[int(row)] = int(column)
                taken.add(int(column))
                if len(partner) == len(rows) or len(taken) == len(columns):
                    break
        for row, number in enumerate(rows):
            best = int(np.argmax(score[row]))
            chosen = partner.get(row, best)
            # Its own place may have gone to one that fits it better; what is shared is no rival.
            if close.band[row, chosen] < close.band[row, best]:
                chosen = best
            self._judge_anchor(
                number, columns[chosen], int(levels[row, chosen]), close.distance[row]
            )
            if self._outcomes[number].values is not None:
                tied = np.flatnonzero(score[row] >= score[row, chosen] - 1e-3)
                others = [columns[int(index)] for index in tied if index != chosen]
                self._partners[number] = [columns[chosen], *others]

    def _judge_anchor(self, number: int, column: int, level: int, rivals: Array) -> None:
        """Compare a weight with the one that was chosen for it, value for value."""
        weight = self._twin.anchors[number].weight
        anchor = self._other.anchors[column]
        assert weight is not None
        assert anchor.weight is not None
        forms = _distinct(anchor)
        missing = max(0, len(forms) - len(_distinct(self._twin.anchors[number])))
        candidates = [
            _Candidate(
                level=level,
                values=anchor.scaled(scale),
                source=_source(anchor.weight, through),
                expected=index == missing,
            )
            for index, (scale, through) in enumerate(forms)
        ]
        self._outcomes[number] = self._decide(weight, candidates, rivals)

    # Everything else.

    def _match_site(self, site: Site) -> _Outcome:
        candidates: list[_Candidate] = []
        number = self._adds.get(id(site))
        if number is not None:
            weight = self._outcomes[number]
            if weight.values is None and weight.level >= PLACED:
                # A few values of a bias may be alike by chance.
                text = f"the weight of the same operator has no original: {weight.text}"
                return _Outcome(level=weight.level, close=None, values=None, text=text)
            candidates += self._biases(number, site)
        for rival, level in self._operands.closest(site):
            values = rival.held.values.reshape(site.held.values.shape)
            candidates.append(_Candidate(level=level, values=values, source=_source(rival)))
        if not candidates:
            shape = in_words(self._model.constants[site.held.constant].shape)
            what = f"the float model has no operand like this {shape} of {site.node.op_type}"
            return _Outcome(level=0, close=None, values=None, text=what)
        return self._decide(site, candidates, None)

    def _biases(self, number: int, site: Site) -> Iterator[_Candidate]:
        """Yield what the bias of an anchor may have been, with what was folded into it."""
        anchor = self._twin.anchors[number]
        partners = [(other, 4) for other in self._partners.get(number, ())]
        if not partners:
            partners = [
                (other, self._levels.level(number, other))
                for other, item in enumerate(self._other.anchors)
                if item.kind == anchor.kind and item.channels == anchor.channels
            ]
        for other, level in partners:
            item = self._other.anchors[other]
            assert item.weight is not None
            for affine in item.affine:
                absent = not affine.through and not affine.shift.any()
                if absent and site.held.values.any() and len(item.affine) > 1:
                    # Of no help in the reason for a rejection: something is added further on.
                    continue
                values = _laid_out(affine, site.held.values.shape)
                if values is not None:
                    text = _bias_source(item, affine)
                    yield _Candidate(level=level, values=values, source=text)
            for added in item.added:
                if added.held.values.size == site.held.values.size:
                    values = added.held.values.reshape(site.held.values.shape)
                    yield _Candidate(level=level, values=values, source=_source(added))

    # The decision.

    def _decide(
        self, site: Site, candidates: Sequence[_Candidate], rivals: Array | None
    ) -> _Outcome:
        """Choose among candidates by place and value, and reject what cannot be."""
        stored = site.held.values
        judged = [(closeness(stored, item.values), item) for item in candidates]
        close, chosen = max(judged, key=_fitness)
        if rivals is None:
            rivals = np.asarray([item.distance for item, _ in judged])
        values = site.held.as_stored(chosen.values)
        near = self._near(site.held.constant, values)
        reason = _reason(close, chosen, rivals, near)
        if reason:
            return _Outcome(level=chosen.level, close=close, values=None, text=reason)
        note = f"relative distance {close.distance:.2g}"
        if near is not None and near < _ROUNDED:
            note += f"; {near:.0%} of the values are within a step of the stored ones"
        text = f"{chosen.source}, {RULES[chosen.level]} ({note})"
        return _Outcome(level=chosen.level, close=close, values=values, text=text)

    def _near(self, constant: str, values: Array) -> float | None:
        """Return the share of values within one step of the stored ones, as after rounding.

        None where nothing is known about steps.
        """
        stored = np.asarray(self._model.constants[constant], np.float32)
        for step, _ in self._model.consumers_of.get(constant, ()):
            params = step.params if isinstance(step, Point) else None
            if params is None or not params.is_integer or not stored.size:
                continue
            scale, zero = (
                _spread(item, params.axis, stored.shape)
                for item in (params.scale, params.zero_point)
            )
            if scale is None or zero is None:
                continue
            # What lies outside of the range is cut off, however far out.
            inside = np.clip(values, (params.qmin - zero) * scale, (params.qmax - zero) * scale)
            return float(np.mean(np.abs(inside - stored) <= 1.01 * scale))
        return None


def _spread(items: Array, axis: int, shape: tuple[int, ...]) -> Array | None:
    """Return scales or zero points so that they broadcast; None where they do not fit."""
    if items.size == 1:
        return items.reshape(())
    if axis >= len(shape) or items.shape != (shape[axis],):
        return None
    return items.reshape([-1 if index == axis else 1 for index in range(len(shape))])


def _reason(close: Closeness, chosen: _Candidate, rivals: Array, near: float | None) -> str:
    """Return why a candidate is not taken; empty when it is.

    Args:
        close: How close it is to the stored values.
        chosen: The candidate.
        rivals: Distances of all that were compared.
        near: Share of values within one step; None when steps are not known.
    """
    closer = bool((rivals < 0.8 * close.distance - 1e-6).any())
    if chosen.level >= PLACED:
        # On a coarse grid rounding may change a weight beyond recognition, but no value by more
        # than a step. On a fine one no other weight comes that near.
        rounded = chosen.level > PLACED and near is not None and near >= _ROUNDED
        possible = rounded or (close.band > 0 and (near is None or near >= _MOSTLY))
        if close.band == 2 or (possible and not closer):
            return ""
        return (
            f"the float model's constant at the same place ({chosen.source}) differs too much "
            f"({close}): is it the model that was quantized?"
        )
    # Only the values speak for it, so they have to speak clearly.
    others = rivals[rivals > close.distance + 1e-6]
    unique = not closer and not (others < 2 * close.distance).any()
    if close.identifies and unique and (near is None or near >= _MOSTLY):
        return ""
    return (
        "no constant of the float model has its place in the graph, and none is close enough to "
        f"be recognized (the closest is {chosen.source}; {close})"
    )


def _distinct(anchor: Anchor) -> list[tuple[Array | None, tuple[str, ...]]]:
    """Return the factors that an anchor's weight may have been multiplied with, each once.

    Beside each are the names of the nodes that it is from.
    """
    found: list[tuple[Array | None, tuple[str, ...]]] = [(None, ())]
    for affine in anchor.affine:
        if affine.scale is not None and affine.scale is not found[-1][0]:
            found.append((affine.scale, affine.through))
    return found


def _laid_out(affine: Affine, shape: tuple[int, ...]) -> Array | None:
    """Return a bias in the shape of a stored one; None where it does not fit."""
    size = int(np.prod(shape))
    if size == affine.shift.size:
        return affine.shift.reshape(shape).astype(np.float32)
    if size == 1 and np.ptp(affine.shift) == 0:
        return affine.shift[:1].reshape(shape).astype(np.float32)
    return None


def _source(site: Site, through: Sequence[str] = ()) -> str:
    """Name a constant of the float model, its node, and what was folded into it."""
    folded = f" with {', '.join(through)} folded in" if through else ""
    return f"{site.held.constant} of {site.node.op_type} {site.node.name}{folded}"


def _bias_source(anchor: Anchor, affine: Affine) -> str:
    assert anchor.weight is not None
    node = anchor.weight.node
    own = [site for site in anchor.added if site.node is node]
    if own:
        return _source(own[0], affine.through)
    if affine.through:
        return f"{', '.join(affine.through)} behind {node.op_type} {node.name}"
    return f"no bias of {node.op_type} {node.name}, which is zero"


def _fitness(pair: tuple[Closeness, _Candidate]) -> tuple[float, ...]:
    close, candidate = pair
    # What agrees needs no guess at what was folded; the values tell.
    expected = close.band == 2 or candidate.expected
    return (close.band, expected, candidate.level, -close.distance)


def _goodness(outcome: _Outcome) -> tuple[object, ...]:
    distance = np.inf if outcome.close is None else outcome.close.distance
    return (outcome.values is not None, outcome.level, -distance)
