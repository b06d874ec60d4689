"""How many threads the matrix products of NumPy use.

Measurements run side by side already, one in a thread. What BLAS adds to that gains nothing: its
threads wait for each other, spinning, and on two cores an integer model takes three times the CPU
time with them and no less wall time (``benchmarks/integer.py`` shows both).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from threadpoolctl import ThreadpoolController


def one_blas_thread() -> AbstractContextManager[object]:
    """Keep NumPy's matrix products to one thread while the context lasts; for the whole process."""
    found: AbstractContextManager[object] = _controller().limit(limits=1, user_api="blas")
    return found


@functools.cache
def _controller() -> ThreadpoolController:
    """Find the libraries, once; it takes some milliseconds."""
    from threadpoolctl import ThreadpoolController  # noqa: PLC0415 - only integers need it

    return ThreadpoolController()
