from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def cache():
    """Quantized models by network and settings, in place of pytest's own fixture of that name."""
    return {}
