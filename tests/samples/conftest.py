from __future__ import annotations

import pytest

from tests.samples.data import image, save


@pytest.fixture
def calib(tmp_path):
    """Twelve samples of one input in its folder."""
    for index in range(12):
        save(tmp_path / "calib/x" / f"{index}.npy", image(index))
    return tmp_path / "calib"
