"""Node lists in the user's own config dialect, and back.

The dialect follows from the march:

* bayes, bayes-e: ``model_parameters: node_info`` of the hb_mapper yaml;
* bernoulli2: ``calibration_parameters: run_on_cpu``, one string of names between semicolons;
* nash-*: ``quant_config: node_config``, which hb_compile reads inside
  ``calibration_parameters`` or from a JSON file.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from hbdebug.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_SETTINGS = ("int16", "cpu")

_NODE_INFO = {"int16": {"ON": "BPU", "InputType": "int16"}, "cpu": {"ON": "CPU"}}

# A nash chip keeps a float node on the BPU's vector unit where it can; hb_compile has no ON key.
_QTYPE = {"int16": "int16", "cpu": "float32"}

_NO_NODES = "No node is set: nothing to change in the configuration."

_NASH_COMMENT = (
    "hb_compile reads this inside calibration_parameters, or as a JSON file of the same content",
    "that calibration_parameters.quant_config names.",
)


def node_config(nodes: Mapping[str, str], march: str, *, header: Sequence[str] = ()) -> str:
    """Write a node list as the yaml that the march's toolchain reads.

    Args:
        nodes: Node name -> ``int16`` or ``cpu``.
        march: March name, such as ``bayes-e``.
        header: Lines that go on top as comments.

    Returns:
        The yaml text. Without nodes it is valid yaml that says so in a comment.

    Raises:
        UsageError: A setting is unknown or impossible on the march, or a name cannot be written
            in its dialect.
    """
    for name, setting in nodes.items():
        if setting not in _SETTINGS:
            raise UsageError(
                f"{name}: unknown setting {setting!r}", hint=f"Known: {', '.join(_SETTINGS)}."
            )
    family = _family(march)
    comments = [line for text in header for line in _comment_lines(text)]
    if not nodes:
        comments += [_NO_NODES]
    elif family == "nash":
        comments += [*_NASH_COMMENT]
    return "".join(f"# {line}".rstrip() + "\n" for line in comments) + _dump(
        _content(nodes, family)
    )


def read_node_config(text: str, march: str) -> dict[str, str]:
    """Read back what `node_config` writes, or the same part of a whole configuration.

    Args:
        text: yaml.
        march: March name; tells the dialect.

    Returns:
        Node name -> ``int16`` or ``cpu``, in the order of the file. Settings of other kinds, such
        as ``int8``, are left out.

    Raises:
        UsageError: The text is no yaml or its shape is not that of the dialect.
    """
    family = _family(march)
    document = _load(text)
    if family == "bernoulli2":
        names = _section(document, "calibration_parameters").get("run_on_cpu") or ""
        return {name.strip(): "cpu" for name in str(names).split(";") if name.strip()}
    if family == "nash":
        parameters = _section(document, "calibration_parameters")
        entries = _section(_section(parameters, "quant_config"), "node_config")
        return _settings(entries, _nash_setting)
    entries = _section(document, "model_parameters").get("node_info") or {}
    return _settings(_mapping(entries, "node_info"), _bayes_setting)


def _family(march: str) -> str:
    """Return the dialect of a march: ``bernoulli2``, ``bayes`` or ``nash``."""
    for family in ("bernoulli2", "bayes", "nash"):
        if march == family or march.startswith(f"{family}-"):
            return family
    raise UsageError(
        f"no configuration dialect is known for march {march!r}",
        hint="Known: bernoulli2, bayes, bayes-e and nash-*.",
    )


def _comment_lines(text: str) -> list[str]:
    """Split a header text so that no line of it leaves the comment, and yaml can hold it."""
    lines = text.splitlines() or [""]
    return ["".join(char if char.isprintable() else " " for char in line) for line in lines]


def _content(nodes: Mapping[str, str], family: str) -> CommentedMap:
    if family == "bernoulli2":
        return _nested("calibration_parameters", {"run_on_cpu": _quoted(_run_on_cpu(nodes))})
    if family == "nash":
        entries = {name: {"qtype": _QTYPE[setting]} for name, setting in nodes.items()}
        config = {"node_config": _flow_entries(entries)}
        return _nested("calibration_parameters", {"quant_config": _commented(config)})
    entries = {name: _NODE_INFO[setting] for name, setting in nodes.items()}
    return _nested("model_parameters", {"node_info": _flow_entries(entries)})


def _run_on_cpu(nodes: Mapping[str, str]) -> str:
    """Join names as bernoulli2 wants them; what it cannot hold is an error."""
    for name, setting in nodes.items():
        if setting == "int16":
            raise UsageError(
                f"{name} cannot be int16: bernoulli2 has no int16", hint="Set it to cpu."
            )
        if ";" in name or name != name.strip() or not name:
            raise UsageError(
                f"run_on_cpu cannot hold the node name {name!r}: it separates names by semicolons "
                "and strips blanks",
                hint="Rename the node in the float model and convert again.",
            )
    return "; ".join(nodes)


def _quoted(text: str) -> DoubleQuotedScalarString:
    """Quote a string, so that a name such as ``no``, ``1e-05`` or ``a: b`` stays one."""
    quoted: DoubleQuotedScalarString = DoubleQuotedScalarString(text)
    return quoted


def _commented(content: Mapping[str, Any]) -> CommentedMap:
    return CommentedMap(content)


def _nested(section: str, content: Mapping[str, Any]) -> CommentedMap:
    return CommentedMap({section: _commented(content)})


def _flow_entries(entries: Mapping[str, Mapping[str, str]]) -> CommentedMap:
    """Return one line a node: the quoted name and its settings in braces."""
    block = CommentedMap()
    for name, settings in entries.items():
        line = CommentedMap((_quoted(key), _quoted(value)) for key, value in settings.items())
        line.fa.set_flow_style()
        block[_quoted(name)] = line
    if not entries:
        block.fa.set_flow_style()
    return block


def _dump(content: CommentedMap) -> str:
    writer = YAML()
    # A folded name would still be right, but no longer findable by eye or by grep.
    writer.width = 1 << 30
    writer.allow_unicode = True
    stream = io.StringIO()
    writer.dump(content, stream)
    return stream.getvalue()


def _load(text: str) -> Mapping[str, Any]:
    try:
        document = YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise UsageError(f"not a yaml file: {error}") from error
    return _mapping(document or {}, "the file")


def _section(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a nested mapping; an absent or empty one is an empty one."""
    return _mapping(parent.get(key) or {}, key)


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not hasattr(value, "items"):
        raise UsageError(
            f"{what} is not a mapping but {type(value).__name__}",
            hint="Give a yaml that `hbdebug sensitivity` wrote, or one of the same form.",
        )
    result: Mapping[str, Any] = value
    return result


def _settings(
    entries: Mapping[str, Any], read: Callable[[Mapping[str, Any]], str]
) -> dict[str, str]:
    found = {str(name): read(_mapping(entry, str(name))) for name, entry in entries.items()}
    return {name: setting for name, setting in found.items() if setting}


def _bayes_setting(entry: Mapping[str, Any]) -> str:
    if entry.get("ON") == "CPU":
        return "cpu"
    return "int16" if entry.get("InputType") == "int16" else ""


def _nash_setting(entry: Mapping[str, Any]) -> str:
    qtype = entry.get("qtype") or entry.get("InputType")
    return {"int16": "int16", "float16": "cpu", "float32": "cpu"}.get(str(qtype), "")
