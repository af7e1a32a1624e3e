"""The tensors and images of the recorded cases, from names, shapes and a seed; NumPy alone."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent
Case = Mapping[str, Any]
SCALES = ("lambda1", "lambda_1", "lambda_2", "gamma", "gamma_1", "gamma_2")
TABLES = (
    *("cls_token", "class_embedding", "mask_token", "reg_token", "register_tokens"),
    *("dist_token", "distillation_token", "pos_embed", "position_embeddings"),
    *("position_embedding", "relative_position_bias_table", "probe", "latent"),
)


def case(name: str) -> dict[str, Any]:
    """What is recorded of a case; `like` names another, of which it gives only what differs."""
    read = json.loads((FOLDER / f"{name}.json").read_text())
    return {**case(read["like"]), **read} if "like" in read else read


def outputs(name: str) -> dict[str, np.ndarray]:
    """The arrays recorded of a case."""
    with np.load(FOLDER / f"{name}.npz") as file:
        return {key: file[key] for key in file.files if not key.startswith("fixed ")}


def normal(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """The standard normal of a name, in float64."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape)


def tensor(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """The tensor of a name, scaled as its kind needs for outputs of order one."""
    values = normal(name, shape, seed)
    kind = name.removesuffix(".weight").rsplit(".", 1)[-1]
    if kind in SCALES:
        values = 0.5 + 0.2 * values
    elif kind == "running_var":
        values = 0.5 + np.abs(values)
    elif kind in TABLES:
        values = 0.5 * values
    elif len(shape) >= 2:
        values = values / np.sqrt(np.prod(shape[1:]))
    elif name.endswith("weight") and ("norm" in name or "layrnorm" in name):
        values = 1 + 0.2 * values
    else:
        values = 0.2 * values
    return values.astype(np.float32)


def tensors(case: Case) -> dict[str, np.ndarray]:
    """The tensors of a case under the names of its file; those that are not learned as recorded."""
    made = {n: tensor(n, tuple(shape), case["seed"]) for n, shape in case["tensors"].items()}
    if case.get("fixed"):
        with np.load(FOLDER / f"{case.get('like', case['name'])}.npz") as file:
            made.update({name: file[f"fixed {name}"] for name in case["fixed"]})
    return made


def images(case: Case) -> np.ndarray:
    """The images of a case: normalised pixels, NHWC."""
    return normal("images", tuple(case["images"]), case["seed"]).astype(np.float32)


def direction(case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """R of the recorded gradients, which are those of sum(output * R)."""
    return normal("R", shape, case["seed"]).astype(np.float32)


def summary(name: str, gradient: np.ndarray, seed: int) -> tuple[float, float]:
    """What is recorded of a tensor's gradient: its norm, and its product with a normal."""
    gradient = gradient.astype(np.float64)
    other = normal(name, gradient.shape, seed + 1)
    return float(np.sqrt((gradient**2).sum())), float((gradient * other).sum())
