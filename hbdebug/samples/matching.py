"""Names of inputs, and of the folders and keys that are meant for them."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from hbdebug.errors import DataError
from hbdebug.samples.spec import listed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def match(names: Sequence[str], keys: Sequence[str], *, where: Path) -> dict[str, str]:
    """Pair names with keys: equal ones first, then those whose sanitised forms are equal."""
    matched = {name: name for name in names if name in keys}
    for name in names:
        if name in matched:
            continue
        fits = [key for key in keys if key not in matched and _sanitise(key) == _sanitise(name)]
        rivals = [other for other in names if _sanitise(other) == _sanitise(name)]
        rivals = [other for other in rivals if other not in keys]
        if fits and len(fits) + len(rivals) > 2:
            raise DataError(
                f"{listed(fits)} can be meant for input {listed(rivals)}",
                where=str(where),
                hint="Name each exactly as the input that it is for.",
            )
        matched.update(dict.fromkeys([name], fits[0]) if fits else {})
    return matched


def _sanitise(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def meant(missing: Sequence[str], there: Sequence[str]) -> str:
    """Suggest for each missing input what is there under a similar name, or as the only one."""
    lower = {name.lower(): name for name in there}
    pairs = []
    for name in missing:
        close = difflib.get_close_matches(name.lower(), lower, n=1)
        if close:
            pairs.append((name, lower[close[0]]))
        elif len(there) == len(missing) == 1:
            pairs.append((name, there[0]))
    return "".join(f" If '{close}' is meant, rename it to '{name}'." for name, close in pairs)
