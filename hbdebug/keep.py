"""Keep what was made as long as it fits a budget; what was used longest ago goes first."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

V = TypeVar("V")


class Kept(Generic[V]):
    """Values by key, with their sizes; safe to use from several threads.

    Args:
        budget: Bytes that all of them may take together. What is in use elsewhere is kept alive
            there, so that a value may be larger: it is then made each time.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._total = 0
        self._found: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._lock = Lock()
        self._making: dict[Hashable, Lock] = {}

    def get(self, key: Hashable, make: Callable[[], tuple[V, int]]) -> V:
        """Return the value of a key.

        Args:
            key: The key.
            make: Makes the value, and says how many bytes it takes; two threads that ask for the
                same key wait for one of them.
        """
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key][0]
            making = self._making.setdefault(key, Lock())
        with making:
            with self._lock:
                if key in self._found:
                    return self._found[key][0]
            try:
                value, size = make()
            finally:
                with self._lock:
                    self._making.pop(key, None)
            self._put(key, value, size)
        return value

    def _put(self, key: Hashable, value: V, size: int) -> None:
        if size > self._budget:
            return
        with self._lock:
            if key in self._found:
                return
            self._found[key] = value, size
            self._total += size
            while self._total > self._budget:
                _, (_, freed) = self._found.popitem(last=False)
                self._total -= freed
