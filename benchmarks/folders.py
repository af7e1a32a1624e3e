"""How often transformers and timm give our classes from a folder that we write, by decoder.

`python -m benchmarks folders ../shared`: four minutes on two cores; prints one line per package,
mode of the evaluation, and decoder of our side. The folder of recorded files has ViT-Ti/16 of
AugReg and photographs of flowers. Needs torch, transformers and timm; what is not installed is left
out.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

WEIGHTS = "weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k/model.safetensors"
# What these weights are evaluated with, and what models of `keras-vit train` are by default.
MODES = ("stretch_bicubic", "crop")
DECODERS = ("tensorflow", "pillow")
THEIRS = "folder_transform"  # our side prepares images as the folder says
BATCH = 50

Logits = np.ndarray
Classify = Callable[[Sequence[Path]], Logits]


@dataclass(frozen=True)
class Agreement:
    """How far a package's logits for a folder of ours are from ours.

    Attributes:
        package: The other one, and how it computes.
        mode: Of the `eval_transform` that the folder was written from.
        side: How our side prepared the images: that mode after a decoder, or `THEIRS`.
        same: Number of images with the same class.
        images: Number of all images.
        largest: The largest difference of a logit.
        margins: How far our second class is behind, of the images with another class.
    """

    package: str
    mode: str
    side: str
    same: int
    images: int
    largest: float
    margins: tuple[float, ...]

    def __str__(self) -> str:
        ties = f", ours ahead by {max(self.margins):.3f} at most" if self.margins else ""
        return (
            f"{self.package:<26} {self.mode:<16} {self.side:<17} "
            f"same class {self.same}/{self.images} ({self.same / self.images:.1%}), "
            f"logits within {self.largest:.4f}{ties}"
        )


def photographs(shared: Path, count: int) -> list[Path]:
    """So many of the validation photographs, evenly over the classes."""
    root = shared / "photos" / "flowers"
    names = (root / "val.txt").read_text().split()
    return [root / name for name in names[:: len(names) // count][:count]]


def agreements(shared: Path, count: int = 150) -> Iterator[Agreement]:
    """Writes a folder for each package and preparation, and compares the classes of images."""
    import keras_vit

    files = photographs(shared, count)
    model = keras_vit.load(shared / WEIGHTS)
    for mode in MODES:
        model.eval_transform = {"mode": mode}
        with tempfile.TemporaryDirectory() as folder:
            for package, layout, classify in _packages(model, Path(folder)):
                theirs = classify(files)
                for side, transform in _our_sides(mode, model, layout).items():
                    twin = model.copy()
                    twin.eval_transform = transform
                    yield _agreement(package, mode, side, _our_logits(twin, files), theirs)


def decoded_differences(files: Sequence[Path]) -> Iterator[str]:
    """A line per decoder of TensorFlow: how far its pixels are from Pillow's."""
    from keras_vit.data import decode_image
    from keras_vit.data.decode.pillow import decode_with_pillow

    for decoder in DECODERS:
        means, largest = [], 0
        for file in files:
            contents = file.read_bytes()
            pixels = decode_image(contents, decoder=decoder).numpy().astype(int)
            difference = np.abs(pixels - decode_with_pillow(contents))
            means.append(difference.mean())
            largest = max(largest, int(difference.max()))
        identical = sum(mean == 0 for mean in means)
        yield (
            f"decoder={decoder!r}: {identical}/{len(files)} images have Pillow's pixels; "
            f"{np.mean(means):.2f} levels apart in the mean, {largest} at most"
        )


def _our_sides(mode: str, model: Any, layout: str) -> dict[str, dict[str, Any]]:
    from keras_vit.weights import folder_transform

    sides: dict[str, dict[str, Any]] = {
        decoder: {"mode": mode, "decoder": decoder} for decoder in DECODERS
    }
    return {**sides, THEIRS: folder_transform(model, layout)}


def _agreement(package: str, mode: str, side: str, ours: Logits, theirs: Logits) -> Agreement:
    same = ours.argmax(-1) == theirs.argmax(-1)
    best = np.sort(ours[~same], axis=-1)
    return Agreement(
        package,
        mode,
        side,
        int(same.sum()),
        len(ours),
        float(np.abs(ours - theirs).max()),
        tuple(map(float, best[:, -1] - best[:, -2])),
    )


def _our_logits(model: Any, files: Sequence[Path]) -> Logits:
    from keras_vit.evaluation.prediction import read_images

    batches = [files[start : start + BATCH] for start in range(0, len(files), BATCH)]
    scores = [model.predict_on_batch(read_images(model, batch)[0]) for batch in batches]
    return np.concatenate([np.asarray(part) for part in scores])


def _packages(model: Any, folder: Path) -> Iterator[tuple[str, str, Classify]]:
    """What is installed, each with the folder that we write for it."""
    import keras_vit

    try:
        import transformers
    except ImportError:
        pass
    else:
        keras_vit.save_weights(model, folder / "huggingface", "huggingface")
        backends = ["pil"]
        if transformers.utils.is_torchvision_available():
            backends.append("torchvision")
        for backend in backends:
            classify = _of_transformers(folder / "huggingface", backend)
            yield f"transformers, {backend}", "huggingface", classify
    try:
        import timm  # noqa: F401
    except ImportError:
        return
    keras_vit.save_weights(model, folder / "timm", "timm")
    yield "timm", "timm", _of_timm(folder / "timm")


def _of_transformers(folder: Path, backend: str) -> Classify:
    import transformers

    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend=backend)
    network = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()

    def prepare(image: Any) -> Any:
        return processor(image, return_tensors="pt")["pixel_values"][0]

    return lambda files: _their_logits(files, prepare, lambda pixels: network(pixels).logits)


def _of_timm(folder: Path) -> Classify:
    import timm

    network = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    prepare = timm.data.create_transform(**timm.data.resolve_model_data_config(network))
    return lambda files: _their_logits(files, prepare, network)


def _their_logits(
    files: Sequence[Path], prepare: Callable[[Any], Any], network: Callable[[Any], Any]
) -> Logits:
    import torch
    from PIL import Image

    logits = []
    for start in range(0, len(files), BATCH):
        pixels = [prepare(Image.open(file).convert("RGB")) for file in files[start : start + BATCH]]
        with torch.no_grad():
            logits.append(network(torch.stack(pixels)).numpy())
    return np.concatenate(logits)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks folders", description=__doc__)
    parser.add_argument("shared", type=Path, help="folder of recorded weights and photographs")
    parser.add_argument("--images", type=int, default=150, help="number of photographs")
    options = parser.parse_args(arguments)
    for line in decoded_differences(photographs(options.shared, options.images)):
        print(line, flush=True)
    for row in agreements(options.shared, options.images):
        print(row, flush=True)
