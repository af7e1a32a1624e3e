"""What is tf.data alone is tested once, in the run on TensorFlow: no backend takes part in it."""

import keras
import pytest

# Without test_imports, test_pipeline, test_robustness and test_speed, which a backend may change.
TF_DATA_ALONE = (
    "test_decoding",
    "test_erasing",
    "test_loading",
    "test_mixing",
    "test_preprocessing",
    "test_rand_augment",
    "test_sheet",
    "test_tfds",
)


@pytest.fixture(autouse=True, scope="module")
def _once(request: pytest.FixtureRequest) -> None:
    name = request.module.__name__.rsplit(".", 1)[-1]
    if name in TF_DATA_ALONE and keras.backend.backend() != "tensorflow":
        pytest.skip("no backend takes part: tested in the run on TensorFlow")
