"""The measured suggestion as a file in the user's own configuration dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hbdebug.report.configs import node_config
from hbdebug.report.rows import better_ceiling, outcome

if TYPE_CHECKING:
    from hbdebug.results import SensitivityResult

CONFIG_FILE = "cpu_nodes.yaml"
"""Name of the file in the output folder."""


def suggestion_config(result: SensitivityResult) -> str | None:
    """Return the content of `CONFIG_FILE`, headed by what was measured; None without a suggestion.

    Args:
        result: What was measured.
    """
    suggestion = result.suggestion
    if suggestion is None:
        return None
    header = [
        f"hbdebug {result.hbdebug_version}: nodes to move, march {result.model.march}",
        f"model {result.model.path} (sha256 {result.model.sha256[:16]})",
        f"data {result.data.path}, {len(result.data.samples)} samples; fidelity {result.fidelity}",
        outcome(suggestion),
    ]
    header += filter(None, [better_ceiling(result)])
    return node_config(suggestion.nodes, result.model.march, header=header)
