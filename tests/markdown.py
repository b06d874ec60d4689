"""Just enough Markdown for the documentation tests: fenced blocks, code spans, links, headings."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FENCE = re.compile(r"^( *)(```+|~~~+)\s*(\S*)")
_MARKER = re.compile(r"^<!--\s*run\b(.*)-->$")
_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_REFERENCE = re.compile(r"^\s*\[[^\]]+\]:\s+<?(\S+?)>?\s*$", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One fenced block.

    Attributes:
        line: Line number of its fence, from 1.
        language: First word behind the fence.
        text: Content.
        settings: Words of a ``<!-- run ... -->`` comment in front of it; None without one.
    """

    line: int
    language: str
    text: str
    settings: tuple[str, ...] | None


def blocks(text):
    """Return the fenced blocks of a file, in order."""
    found = []
    opened = None
    before = ""
    for number, line in enumerate(text.split("\n"), start=1):
        match = _FENCE.match(line)
        if opened is None and match:
            marker = _MARKER.match(before)
            settings = tuple(marker[1].split()) if marker else None
            opened = (number, match[1], match[2], match[3], settings, [])
        elif opened is not None and line.strip() == opened[2]:
            start, _, _, language, settings, lines = opened
            body = "\n".join(lines)
            found.append(Block(line=start, language=language, text=body, settings=settings))
            opened = None
            before = ""
        elif opened is not None:
            opened[5].append(line.removeprefix(opened[1]))
        elif line.strip():
            before = line.strip()
    assert opened is None, f"the block opened in line {opened[0]} is never closed"
    return found


def prose(text):
    """Return a file without its fenced blocks, line by line where it was."""
    lines = text.split("\n")
    for block in blocks(text):
        for index in range(block.line - 1, block.line + block.text.count("\n") + 2):
            lines[index] = ""
    return "\n".join(lines)


def spans(text):
    """Return the content of every code span outside of blocks, on one line each."""
    return [" ".join(match[2].split()) for match in _SPAN.finditer(prose(text))]


def links(text):
    """Return the target of every link and picture outside of code."""
    plain = _SPAN.sub("", prose(text))
    return [match[1] for match in _LINK.finditer(plain)] + _REFERENCE.findall(plain)


def anchors(text):
    """Return the anchors that headings get, as the common hosts of repositories make them."""
    found = []
    for heading in _HEADING.findall(prose(text)):
        bare = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", bare).replace(" ", "-")
        repeated = sum(
            re.fullmatch(rf"{re.escape(slug)}(-\d+)?", name) is not None for name in found
        )
        found.append(f"{slug}-{repeated}" if repeated else slug)
    return set(found)


def commands(block):
    """Return (command, shown output) for each command of a block.

    In a ``console`` block commands follow ``$``; what follows them is their output. In ``sh``
    and ``bash`` blocks every line is a command, and in others those that start with ``hbdebug``
    are. A backslash at the end of a line joins the next one to it.
    """
    lines = re.sub(r"\\\n\s*>?\s*", "", block.text).split("\n")
    shell = block.language in {"sh", "bash", "shell"}
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif shell or (block.language != "console" and re.match(r"hbdebug\s", line)):
            if line.strip() and not line.lstrip().startswith("#"):
                found.append((line, []))
        elif found and block.language == "console":
            found[-1][1].append(line)
    return found
