"""The blocks of docs/inspection/README.md, Grad-CAM among them, on the backend of this run."""

import keras
import numpy as np
import pytest

from tests.conftest import REPOSITORY
from tests.docs.blocks import python_blocks


@pytest.mark.every_backend
def test_the_blocks_of_the_page() -> None:
    names: dict = {}
    for block in python_blocks(REPOSITORY / "docs" / "inspection" / "README.md"):
        exec(compile(block.code, str(block), "exec"), names)
    assert names["speaks"].shape == names["rollout"].shape == (2, 4, 4)
    assert names["maps"].shape == (2, 2, 2, 17, 17)
    # Grad-CAM: the mean of the patches is classified linearly, so that the gradient is known.
    kernel = keras.ops.convert_to_numpy(names["classifier"].get_layer("head").kernel)[:, 1]
    np.testing.assert_allclose(names["gradient"], np.broadcast_to(kernel / 16, (2, 16, 32)), 1e-5)
    expected = np.maximum(names["features"] @ kernel / 16, 0).reshape(2, 4, 4)
    np.testing.assert_allclose(names["cam"], expected, atol=1e-6)
    assert names["cam"].max() > 0
