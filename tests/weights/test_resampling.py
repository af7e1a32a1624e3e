"""The rules of other packages, against these packages."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from keras_vit.weights.resampling import RULES, resample_channels, resample_grid, resample_patches

SIZES = [((14, 14), (24, 24)), ((24, 24), (14, 14)), ((7, 9), (10, 4)), ((5, 5), (1, 8))]


def torch_rule(scaled: bool = False, **options: Any) -> Callable[..., np.ndarray]:
    """Scaled: as in dinov2/models/vision_transformer.py, which gives a scale, not a size."""

    def resample(x: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        torch = pytest.importorskip("torch")
        images = torch.as_tensor(x).permute(2, 0, 1)[None]
        scale = tuple((new + 0.1) / old for new, old in zip(size, x.shape, strict=False))
        sizes = {"scale_factor": scale} if scaled else {"size": size}
        resized = torch.nn.functional.interpolate(images, **sizes, **options)
        return resized[0].permute(1, 2, 0).numpy()

    return resample


def scipy_zoom(x: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    ndimage = pytest.importorskip("scipy.ndimage")
    factors = (size[0] / x.shape[0], size[1] / x.shape[1], 1)
    return ndimage.zoom(x.astype("float64"), factors, order=1)


def jax_linear(x: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    jax = pytest.importorskip("jax")
    return np.asarray(jax.image.resize(x, (*size, x.shape[-1]), "linear"))


ORIGINALS = {
    "zoom": scipy_zoom,
    "linear_antialias": jax_linear,
    "bicubic_antialias": torch_rule(mode="bicubic", antialias=True),
    "bicubic": torch_rule(mode="bicubic"),
    "bicubic_offset": torch_rule(mode="bicubic", scaled=True),
    "bilinear": torch_rule(mode="bilinear"),
}


@pytest.mark.parametrize(("old", "new"), SIZES)
@pytest.mark.parametrize("rule", [r for r in RULES if r != "geometric"])  # in the recorded peers
def test_rule_equals_the_package_it_comes_from(rule: str, old: Any, new: Any) -> None:
    x = np.random.default_rng(0).normal(0, 1, (*old, 6)).astype("float32")
    expected = ORIGINALS[rule](x, new)
    np.testing.assert_allclose(resample_grid(x, new, rule), expected, atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("size", [(4, 4), (6, 6), (10, 10), (16, 16), (12, 20)])
def test_patches_equal_flexivits(size: tuple[int, int], shared: Any) -> None:
    folder = shared / "golden" / "bv_flexivit"
    kernel = np.load(folder / "weights.npz")["embedding/kernel"]
    recorded = np.load(folder / "io.npz")[f"patchemb_{size[0]}x{size[1]}"]
    assert np.abs(resample_patches(kernel, size) - recorded).max() <= 1e-5


def test_a_larger_patch_of_an_enlarged_picture_has_the_same_embedding() -> None:
    random = np.random.default_rng(0)
    kernel = random.normal(0, 1, (4, 4, 3, 5)).astype("float32")
    patch = random.normal(0, 1, (4, 4, 3)).astype("float32")
    larger = resample_grid(patch, (8, 6), "bilinear")
    expected = np.einsum("hwc,hwcd->d", patch, kernel)
    embeddings = np.einsum("hwc,hwcd->d", larger, resample_patches(kernel, (8, 6)))
    np.testing.assert_allclose(embeddings, expected, atol=1e-4)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 6, 13])
def test_a_gray_picture_keeps_its_embedding_with_any_channels(channels: int) -> None:
    kernel = np.random.default_rng(0).normal(0, 1, (2, 2, 3, 4)).astype("float32")
    changed = resample_channels(kernel, channels)
    np.testing.assert_allclose(changed.sum(axis=2), kernel.sum(axis=2), atol=1e-5)
    if channels >= 3:
        np.testing.assert_allclose(resample_channels(changed, 3), kernel, atol=1e-6)
