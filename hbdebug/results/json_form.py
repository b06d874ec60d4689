"""Records to and from JSON-ready values; see `hbdebug.results` for the form."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from hbdebug.errors import DataError
from hbdebug.results.records import Effect, MetricValues, NodeResult, PointResult

_Record = TypeVar("_Record")


def fields_to_json(record: Any) -> dict[str, Any]:
    """Write the fields of a record as JSON-ready values."""
    return {item.name: _plain(getattr(record, item.name)) for item in fields(record)}


def _plain(value: Any) -> Any:
    """Turn records, tuples and mappings into JSON types; non-finite numbers into null."""
    if is_dataclass(value):
        return _record_to_json(value)
    if isinstance(value, Mapping):
        return _mapping_to_json(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        # NumPy scalars, which json refuses although they are plain numbers.
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _record_to_json(record: Any) -> dict[str, Any]:
    if isinstance(record, Effect):
        return _effect_to_json(record)
    if isinstance(record, (NodeResult, PointResult)):
        return _ranked_to_json(record)
    return fields_to_json(record)


def _mapping_to_json(values: Mapping[str, Any], *, exact: bool | None = None) -> dict[str, Any]:
    """Write a mapping, with what undoes each null that stands for a number.

    Args:
        values: Names and values; of metrics, most of the time.
        exact: Value of the ``exact`` entry; None writes ``true`` when an infinite SQNR needs it
            and leaves it out otherwise.
    """
    record = {str(name): _plain(value) for name, value in values.items()}
    if exact is None and values.get("sqnr_db") == math.inf:
        exact = True
    if exact is not None:
        record["exact"] = exact
    lost = {
        str(name): str(float(value))
        for name, value in values.items()
        if value is not None
        and record[str(name)] is None
        and str(float(value)) != str(_absent_number(name, exact=bool(exact)))
    }
    if lost:
        record["non_finite"] = lost
    return record


def _absent_number(name: str, *, exact: bool) -> float:
    """Return the number that a null stands for when nothing beside it says otherwise."""
    return math.inf if exact and name == "sqnr_db" else math.nan


_ENDS = ("interval[0]", "interval[1]")


def _effect_to_json(effect: Effect) -> dict[str, Any]:
    """Write an effect in the short form of the schema: metrics beside ``interval``."""
    ends = dict(zip(_ENDS, effect.interval or (), strict=False))
    record = _mapping_to_json({**effect.values, **ends}, exact=effect.exact)
    record["interval"] = [record.pop(end) for end in ends] or None
    record["flags"] = list(effect.flags)
    return record


def _ranked_to_json(item: NodeResult | PointResult) -> dict[str, Any]:
    """Write a line of a ranking; the outputs of ``alone`` go one level up, by the schema."""
    record = fields_to_json(item)
    record["outputs"] = _plain(item.alone.outputs)
    if isinstance(item, NodeResult):
        for part, effect in (("weights", item.weights), ("activations", item.activations)):
            if effect is not None:
                record[part]["outputs"] = _plain(effect.outputs)
    return record


def _malformed(where: str, problem: str) -> DataError:
    return DataError(
        f"a malformed result: {where or 'the record'}: {problem}",
        hint="The file was edited or cut short; run `hbdebug sensitivity` again.",
    )


def read_record(cls: type[_Record], record: Any, where: str) -> _Record:
    """Build a record from its JSON form, checking every field against its annotation.

    Args:
        cls: Dataclass to build.
        record: JSON value.
        where: Path of the value inside the file, for the error message.
    """
    if not isinstance(record, Mapping):
        raise _malformed(where, f"expected an object, found {record!r:.60}")
    found: dict[str, Any] = {}
    hints = get_type_hints(cls)
    for item in fields(cls):  # type: ignore[arg-type]  # every caller passes a dataclass
        path = f"{where}.{item.name}" if where else item.name
        if item.name not in record:
            if _has_default(item):
                continue
            raise _malformed(path, "missing")
        value, hint = record[item.name], hints[item.name]
        if hint == Effect or (Effect in get_args(hint) and value is not None):
            outputs = record if item.name == "alone" else value
            found[item.name] = _read_effect(value, outputs, path)
        else:
            found[item.name] = _read(hint, value, path)
    return cls(**found)


def _has_default(item: Field[Any]) -> bool:
    return item.default is not MISSING or item.default_factory is not MISSING


def _read_effect(record: Any, holder: Any, where: str) -> Effect:
    """Read the short form of an effect, whose outputs are in ``holder``."""
    if not isinstance(record, Mapping):
        raise _malformed(where, f"expected an object, found {record!r:.60}")
    for name in ("interval", "exact", "flags"):
        if name not in record:
            raise _malformed(f"{where}.{name}", "missing")
    if "outputs" not in holder:
        raise _malformed(f"{where}: outputs", "missing")
    apart = {"interval", "flags", "outputs"}
    metrics = {name: value for name, value in record.items() if name not in apart}
    if record["interval"] is not None:
        pair = _read(tuple[Any, Any], record["interval"], f"{where}.interval")
        metrics.update(zip(_ENDS, pair, strict=True))
    values = _read(MetricValues, metrics, where)
    ends = [values.pop(end) for end in _ENDS if end in values]
    return Effect(
        values=values,
        outputs=_read(Mapping[str, MetricValues], holder["outputs"], f"{where}: outputs"),
        interval=(ends[0], ends[1]) if ends else None,
        exact=_read(bool, record["exact"], f"{where}.exact"),
        flags=_read(tuple[str, ...], record["flags"], f"{where}.flags"),
    )


def _lost_number(text: Any, where: str) -> float:
    if text not in ("inf", "-inf", "nan"):
        raise _malformed(where, f"expected inf, -inf or nan in non_finite, found {text!r:.60}")
    return float(text)


def _read(hint: Any, value: Any, where: str) -> Any:
    """Read a JSON value as what an annotation asks for."""
    origin = get_origin(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        (kind,) = (arg for arg in get_args(hint) if arg is not types.NoneType)
        return None if value is None else _read(kind, value, where)
    if origin is tuple:
        return _read_tuple(get_args(hint), value, where)
    if origin is Mapping:
        return _read_mapping(get_args(hint)[1], value, where)
    if is_dataclass(hint):
        return read_record(hint, value, where)  # type: ignore[arg-type]  # a class, not an object
    return _read_scalar(hint, value, where)


def _read_tuple(kinds: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise _malformed(where, f"expected a list, found {value!r:.60}")
    if kinds[-1] is not Ellipsis and len(value) != len(kinds):
        raise _malformed(where, f"expected {len(kinds)} entries, found {len(value)}")
    return tuple(_read(kinds[0], item, f"{where}[{index}]") for index, item in enumerate(value))


def _read_mapping(kind: Any, value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _malformed(where, f"expected an object, found {value!r:.60}")
    if kind is not float:
        return {name: _read(kind, item, f"{where}.{name}") for name, item in value.items()}
    exact, lost = value.get("exact", False) is True, value.get("non_finite", {})
    if not isinstance(lost, Mapping):
        raise _malformed(f"{where}.non_finite", f"expected an object, found {lost!r:.60}")
    numbers = {}
    for name, item in value.items():
        if name in {"exact", "non_finite"}:
            continue
        if item is not None:
            numbers[name] = _read_scalar(float, item, f"{where}.{name}")
        elif name in lost:
            numbers[name] = _lost_number(lost[name], f"{where}.{name}")
        else:
            numbers[name] = _absent_number(name, exact=exact)
    return numbers


_SCALARS = {str: "a string", bool: "true or false", int: "a whole number", float: "a number"}


def _read_scalar(kind: type, value: Any, where: str) -> Any:
    if kind is float and value is None:
        return math.nan
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _malformed(where, f"expected {_SCALARS[kind]}, found {value!r:.60}")
    return value
