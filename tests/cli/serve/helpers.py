"""A tiny model, images for it, and requests to a server."""

import io
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from PIL import Image

import keras_vit
from keras_vit._base.files import atomic_write

NAMES = ('<b>"rose"</b>\x1b[31m', "tulip\udcff", "daisy")


def tiny_model(seed: int = 0, **options: Any) -> Any:
    """A classifier of 32 x 24 pixels whose probabilities differ clearly between images."""
    keras.utils.set_random_seed(seed)
    model = keras_vit.VisionTransformer(
        num_classes=3, patch_size=8, hidden_dim=16, depth=2, num_heads=2, mlp_dim=32,
        input_shape=(32, 24, 3), **options,
    )  # fmt: skip
    random = np.random.default_rng(seed)
    for weight in model.trainable_variables:
        weight.assign(random.normal(0, 0.3, weight.shape).astype("float32"))
    model.class_names = NAMES
    return model


def jpeg(seed: int = 0, size: tuple[int, int] = (60, 50)) -> bytes:
    """An image file of coarse noise."""
    noise = np.random.default_rng(seed).integers(0, 256, (6, 5, 3)).astype("uint8")
    buffer = io.BytesIO()
    Image.fromarray(noise).resize(size).save(buffer, "JPEG")
    return buffer.getvalue()


# urllib's own keeps the proxies of the first test that opened an address.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def request(
    port: int, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, JSON (or the text as `"text"`) and headers of an answer."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    message = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, sent)
    try:
        answer = _OPENER.open(message, timeout=60)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        text = answer.read().decode()
    is_json = answer.headers["content-type"] == "application/json"
    content = json.loads(text) if is_json else {"text": text}
    return answer.status, content, {k.lower(): v for k, v in answer.headers.items()}


def probabilities(content: dict[str, Any]) -> dict[str, float]:
    return {entry["class"]: entry["probability"] for entry in content["predictions"]}


def save(model: Any, path: Path) -> Path:
    """Replaces the file at once, as the package's own writers do."""
    with atomic_write(path) as temporary:
        model.save(temporary)
    return path


def eventually(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Waits until it holds; fails when it never does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)
