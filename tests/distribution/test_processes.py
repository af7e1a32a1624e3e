"""What `initialize` and `create` say where processes were started, or not, on every backend."""

import keras
import numpy as np
import pytest

import keras_vit

ON_TORCH = keras.backend.backend() == "torch"


def test_one_process_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    keras_vit.distribution.initialize()
    assert keras_vit.distribution.is_first_process()


@pytest.mark.skipif(ON_TORCH, reason="torch joins them")
def test_torchrun_on_another_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match=r"WORLD_SIZE=2.*KERAS_BACKEND=torch"):
        keras_vit.distribution.initialize()


@pytest.mark.skipif(not ON_TORCH, reason="for torch's processes")
def test_processes_that_did_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match=r"call keras_vit\.distribution\.initialize"):
        keras_vit.distribution.create("data_parallel")


@pytest.mark.skipif(not ON_TORCH, reason="for torch's processes")
def test_a_distribution_over_one_process() -> None:
    with pytest.raises(ValueError, match="torchrun --nproc-per-node"):
        keras_vit.distribution.create("data_parallel", devices=2)
    images = np.zeros((3, 8, 8, 3), "uint8")
    with keras_vit.distribution.create("data_parallel", devices=1).scope():
        model = keras_vit.VisionTransformer(
            patch_size=4, hidden_dim=8, depth=1, num_heads=2, num_classes=2, input_shape=(8, 8, 3)
        )
        assert model.predict(images, verbose=0).shape == (3, 2)


@pytest.mark.skipif(not ON_TORCH, reason="for torch's processes")
@pytest.mark.parametrize("kind", ["fsdp", "tensor_parallel"])
def test_kinds_that_torch_does_not_have(kind: str) -> None:
    with pytest.raises(RuntimeError, match=r'create\("data_parallel"\) works'):
        keras_vit.distribution.create(kind)
