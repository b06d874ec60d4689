"""Find which nodes a quantized ONNX model loses accuracy in, and what to change about it.

The public names, each imported on first use::

    import hbdebug

    result = hbdebug.sensitivity("cls_calibrated_model.onnx", "calib/")
    for node in result.nodes[:5]:
        print(node.rank, node.name, node.alone.values["sqnr_db"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hbdebug.conversion import quantize
    from hbdebug.engine import Engine
    from hbdebug.errors import DataError, HbdebugError, ModelError, UnsupportedError, UsageError
    from hbdebug.loading import load
    from hbdebug.metrics import METRICS
    from hbdebug.model import Assignment, QuantModel
    from hbdebug.pipeline import info, sensitivity
    from hbdebug.quant import QuantParams
    from hbdebug.report.record import read_result
    from hbdebug.results import SensitivityResult
    from hbdebug.samples import Preparation, Samples, open_samples

__version__ = "0.1.0"

__all__ = [
    "METRICS",
    "Assignment",
    "DataError",
    "Engine",
    "HbdebugError",
    "ModelError",
    "Preparation",
    "QuantModel",
    "QuantParams",
    "Samples",
    "SensitivityResult",
    "UnsupportedError",
    "UsageError",
    "info",
    "load",
    "open_samples",
    "quantize",
    "read_result",
    "sensitivity",
]

_HOME = {
    "METRICS": "metrics",
    "Assignment": "model",
    "DataError": "errors",
    "Engine": "engine",
    "HbdebugError": "errors",
    "ModelError": "errors",
    "Preparation": "samples",
    "QuantModel": "model",
    "QuantParams": "quant",
    "Samples": "samples",
    "SensitivityResult": "results",
    "UnsupportedError": "errors",
    "UsageError": "errors",
    "info": "pipeline",
    "load": "loading",
    "open_samples": "samples",
    "quantize": "conversion",
    "read_result": "report.record",
    "sensitivity": "pipeline",
}

if not TYPE_CHECKING:  # A type checker would take any misspelled name for a real one.

    def __getattr__(name: str) -> object:
        """Import a public name on first use, so that ``hbdebug --help`` stays fast."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib  # noqa: PLC0415

        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """List the lazy names too, for completion in a shell or a notebook."""
        return sorted({*globals(), *__all__})
