"""The contestants of `python -m benchmarks compare`: how each builds its model and takes a step.

Every system builds a ViT of the same size on the same images and classes: patches, a class token,
learned positions, pre-norm blocks with exact GELU (the default of all but Flax and the authors'
code), a linear head. Pixels are not normalized. One training step is forward, cross-entropy,
backward, and the optimizer's update.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks._work import OPTIMIZERS, Step, Work


def vision_transformer(work: Work, include_preprocessing: bool) -> Any:
    import keras_vit

    return keras_vit.VisionTransformer(
        num_classes=work.num_classes,
        input_shape=(work.image_size, work.image_size, 3),
        include_preprocessing=include_preprocessing,
        dropout=work.dropout,
        attention_dropout=work.dropout,
        dtype=work.policy,
        **{"activation": "gelu", **work.sizes(), **work.options},
    )


def keras_vit_model(work: Work) -> Step:
    return _keras_step(vision_transformer(work, include_preprocessing=False), work)


def keras_hub_classifier(work: Work) -> Any:
    from keras_hub.models import ViTBackbone, ViTImageClassifier

    sizes = work.sizes()
    backbone = ViTBackbone(
        image_shape=(work.image_size, work.image_size, 3),
        patch_size=sizes["patch_size"],
        num_layers=sizes["depth"],
        num_heads=sizes["num_heads"],
        hidden_dim=sizes["hidden_dim"],
        mlp_dim=sizes["mlp_dim"],
        dropout_rate=work.dropout,
        attention_dropout=work.dropout,
        dtype=work.policy,
        **work.options,
    )
    return ViTImageClassifier(
        backbone=backbone, num_classes=work.num_classes, head_dtype="float32", dtype=work.policy
    )


def keras_hub_model(work: Work) -> Step:
    return _keras_step(keras_hub_classifier(work), work)


def exported_model(work: Work) -> Step:
    """The SavedModel's signature for pixels, as a process that only serves would call it."""
    import tempfile

    import tensorflow as tf

    import keras_vit

    if work.task != "inference":
        raise ValueError("A SavedModel does not train. Give --tasks inference.")
    model = vision_transformer(work, include_preprocessing=True)
    with tempfile.TemporaryDirectory() as folder:
        loaded = tf.saved_model.load(keras_vit.export(model, f"{folder}/1"))
    pixels = tf.constant(127.5 * (work.batch()[0] + 1))
    # Reading a value waits for it.
    return lambda: loaded.signatures["images"](images=pixels)["probabilities"].numpy()


def _keras_step(model: Any, work: Work) -> Step:
    import keras

    images, labels = map(keras.ops.convert_to_tensor, work.batch())
    model.compile(
        getattr(keras.optimizers, work.optimizer)(1e-4, **OPTIMIZERS[work.optimizer]),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=True if work.compiled or _fit_uses_xla(work) else "auto",
    )
    if work.task == "inference":
        return lambda: model.predict_on_batch(images)
    return lambda: model.train_on_batch(images, labels)


def _fit_uses_xla(work: Work) -> bool:
    """Whether a long `fit` or `predict` computes with XLA where a single batch does not."""
    return (
        work.system == "keras_vit"
        and work.backend == "tensorflow"
        and not accelerator("tensorflow")
    )


def timm_model(work: Work) -> Step:
    from timm.models.vision_transformer import VisionTransformer

    sizes = work.sizes()
    model = VisionTransformer(
        img_size=work.image_size,
        patch_size=sizes["patch_size"],
        embed_dim=sizes["hidden_dim"],
        depth=sizes["depth"],
        num_heads=sizes["num_heads"],
        mlp_ratio=sizes["mlp_dim"] / sizes["hidden_dim"],
        num_classes=work.num_classes,
        pos_drop_rate=work.dropout,
        proj_drop_rate=work.dropout,
        attn_drop_rate=work.dropout,
        **work.options,
    )
    return _torch_step(model, work)


def huggingface_model(work: Work) -> Step:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = work.sizes()
    config = ViTConfig(
        image_size=work.image_size,
        patch_size=sizes["patch_size"],
        hidden_size=sizes["hidden_dim"],
        num_hidden_layers=sizes["depth"],
        num_attention_heads=sizes["num_heads"],
        intermediate_size=sizes["mlp_dim"],
        num_labels=work.num_classes,
        hidden_dropout_prob=work.dropout,
        attention_probs_dropout_prob=work.dropout,
        **work.options,
    )
    return _torch_step(ViTForImageClassification(config), work, lambda outputs: outputs.logits)


def _torch_step(model: Any, work: Work, logits: Callable[[Any], Any] = lambda x: x) -> Step:
    import torch

    device = _torch_device()
    images, labels = work.batch()
    # Images as torch's users have them: channels first.
    x = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).to(device)
    y = torch.from_numpy(labels.astype("int64")).to(device)
    model = model.to(device).train(work.task == "training")
    run = torch.compile(model) if work.compiled else model
    half = torch.autocast(device, torch.bfloat16, enabled=work.dtype == "bfloat16")

    def infer() -> Any:
        with torch.inference_mode(), half:
            return logits(run(x)).float().cpu()

    if work.task == "inference":
        return infer
    optimizer = getattr(torch.optim, work.optimizer)(
        model.parameters(), 1e-4, **OPTIMIZERS[work.optimizer]
    )

    def train() -> float:
        optimizer.zero_grad()
        with half:
            loss = torch.nn.functional.cross_entropy(logits(run(x)).float(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return train


def flax_model(work: Work) -> Step:
    from benchmarks._flax_vit import flax_step

    return flax_step(work, work.sizes())


def limit(work: Work) -> Step:
    """A product of two square matrices: the best that the machine can do in this dtype."""
    size = product_size(work)
    random = np.random.default_rng(0)
    a, b = (random.normal(size=(size, size)).astype("float32") for _ in range(2))
    if work.backend == "jax":
        import jax

        a, b = (jax.numpy.asarray(x, work.dtype) for x in (a, b))
        product = jax.jit(lambda a, b: a @ b)
        return lambda: product(a, b).block_until_ready()
    if work.backend == "tensorflow":
        import tensorflow as tf

        a, b = (tf.cast(x, work.dtype) for x in (a, b))
        multiply = tf.function(tf.matmul)
        return lambda: float(multiply(a, b)[0, 0])  # to read a value waits for it
    import torch

    a, b = (torch.from_numpy(x).to(_torch_device(), getattr(torch, work.dtype)) for x in (a, b))
    return lambda: float((a @ b)[0, 0])


def product_size(work: Work) -> int:
    """Rows of the matrices of `limit`: large enough that a faster product does not exist."""
    return 8192 if accelerator(work.backend) else 2048


def accelerator(backend: str) -> str | None:
    """The name of the GPU that the backend computes on, or None."""
    if backend == "torch":
        import torch

        return torch.cuda.get_device_name() if torch.cuda.is_available() else None
    if backend == "jax":
        import jax

        device = jax.devices()[0]
        return device.device_kind if device.platform != "cpu" else None
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    return tf.config.experimental.get_device_details(gpus[0])["device_name"] if gpus else None


def accelerator_peak_bytes(backend: str) -> int | None:
    """The most memory of the GPU that was in use at once, or None without one."""
    if accelerator(backend) is None:
        return None
    if backend == "torch":
        import torch

        return torch.cuda.max_memory_allocated()
    if backend == "jax":
        import jax

        return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    import tensorflow as tf

    return tf.config.experimental.get_memory_info("GPU:0")["peak"]


def _torch_device() -> str:
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    # XLA uses TensorFloat-32 for float32 products on GPUs: so all contestants do.
    torch.set_float32_matmul_precision("high")
    return "cuda"


@dataclass(frozen=True)
class System:
    """One row of the table of contestants.

    Attributes:
        modules: Modules that its user imports, which is timed; {backend} is filled in.
        build: Returns a function that takes one step and waits until it is done.
        variants: Its variants, mostly backends.
        usual: How many of them take part by default.
    """

    modules: tuple[str, ...]
    build: Callable[[Work], Step]
    variants: tuple[str, ...]
    usual: int


KERAS = ("tensorflow", "jax", "torch", "tensorflow-compiled", "torch-compiled")
TORCH = ("eager", "compiled")
SYSTEMS: dict[str, System] = {
    "keras_vit": System(("keras_vit", "keras_vit.models"), keras_vit_model, KERAS, 3),
    # Takes part where it is named with its variant: it does not train.
    "exported": System(("keras_vit", "tensorflow"), exported_model, ("tensorflow",), 0),
    "keras_hub": System(("keras_hub",), keras_hub_model, KERAS, 3),
    "timm": System(("timm",), timm_model, TORCH, 2),
    "huggingface": System(("transformers", "torch"), huggingface_model, TORCH, 2),
    "flax": System(("flax.linen", "optax"), flax_model, ("jax",), 1),
    "limit": System(("{backend}",), limit, ("tensorflow", "jax", "torch"), 3),
}


def import_modules(work: Work) -> None:
    """Imports the modules of the contestant, or raises an ImportError."""
    for name in SYSTEMS[work.system].modules:
        importlib.import_module(name.format(backend=work.backend))
    importlib.import_module(work.backend)
