"""Whether an exported file answers here as its model did, with its engine and NumPy alone.

    python check_file.py FILE    # .onnx, .tflite, .pt2, or the folder of OpenVINO, a SavedModel,
                                 # transformers or timm

The file carries images and its model's answers. `keras-vit check` looks at more: image files,
decisions, and the sum of the bytes. The status is 1 where the file answers otherwise.
"""

import base64
import html
import json
import re
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np

CONTRACT, PROOF = "keras_vit", "keras_vit_proof"


def open_onnx(path):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    texts = session.get_modelmeta().custom_metadata_map
    return texts, lambda images: dict(
        zip(names, session.run(None, {"images": images}), strict=True)
    )


def open_archive(path):
    with zipfile.ZipFile(path) as archive:
        names = {Path(name).stem: name for name in archive.namelist() if name.endswith(".json")}
        texts = {key: archive.read(names[key]) for key in (CONTRACT, PROOF)}
    if path.suffix == ".pt2":
        import torch

        program = torch.export.load(path).module()
        return texts, lambda images: program(images=torch.from_numpy(images))
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path))
    signature = interpreter.get_signature_runner("images")
    return texts, lambda images: signature(images=images)


def open_openvino(path):
    import openvino

    file = next(path.glob("*.xml"))
    model = openvino.Core().read_model(file)
    proof = re.search(rf'<{PROOF} value="([^"]*)"', file.read_text("utf-8"))[1]
    texts = {CONTRACT: model.get_rt_info([CONTRACT]).astype(str), PROOF: html.unescape(proof)}
    run = openvino.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return texts, lambda images: {key.any_name: value for key, value in run(images).items()}


def open_saved_model(path):
    import tensorflow as tf

    loaded, extra = tf.saved_model.load(str(path)), path / "assets.extra"
    texts = {key: (extra / f"{key}.json").read_text("utf-8") for key in (CONTRACT, PROOF)}
    return texts, lambda images: loaded.signatures["images"](images=tf.constant(images))


def open_weights(path):
    import torch

    texts = {key: (path / f"{key}.json").read_text("utf-8") for key in (CONTRACT, PROOF)}
    contract = json.loads(texts[CONTRACT])
    if contract["format"] == "timm":
        import timm

        model = timm.create_model(f"local-dir:{path}", pretrained=True).eval()
        config = timm.data.resolve_model_data_config(model)
        mean, std = config["mean"], config["std"]
    else:
        import transformers

        model = transformers.AutoModelForImageClassification.from_pretrained(path).eval()
        config = json.loads((path / "preprocessor_config.json").read_text("utf-8"))
        mean, std = config["image_mean"], config["image_std"]
    answers = {"classification": torch.softmax, "regression": lambda logits, axis: logits}
    answers["multilabel"] = lambda logits, axis: torch.sigmoid(logits)

    def grades(logits, axis):  # of the probabilities to be above each grade but the last
        above = torch.sigmoid(logits).sort(axis, descending=True)[0]
        one = torch.ones_like(above[..., :1])
        return torch.cat([one, above], axis) - torch.cat([above, 0 * one], axis)

    answers["ordinal"] = grades
    answer = answers[contract["task"]["kind"]]

    def run(images):
        pixels = torch.tensor(((images / 255 - mean) / std).transpose(0, 3, 1, 2)).float()
        with torch.no_grad():
            logits = model(pixels)
        named = answer(getattr(logits, "logits", logits), -1)
        return dict.fromkeys(("probabilities", "values"), named.numpy())

    return texts, run


def unpacked(text, shape, dtype):
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype).reshape(shape).copy()


def main(path):
    openers = {".onnx": open_onnx, ".tflite": open_archive, ".pt2": open_archive}
    is_saved_model = (path / "saved_model.pb").exists()
    opener = openers.get(path.suffix, open_saved_model if is_saved_model else open_openvino)
    opener = open_weights if (path / "config.json").exists() else opener
    texts, run = opener(path)
    contract, proof = (json.loads(texts[key]) for key in (CONTRACT, PROOF))
    files, size = len(proof["files"]), (*contract["image_size"], contract["channels"])
    dtype = "float32" if contract.get("statistics") else "uint8"
    outputs = run(unpacked(proof["pixels"], (8 - files, *size), dtype))
    wrong = False
    for name, (text, shape) in proof["expected"].items():
        truth, found = unpacked(text, shape, "float32"), np.asarray(outputs[name])
        largest, spread = max(1, np.abs(truth).max()), float(np.ptp(truth)) or 1.0
        # Features of a debug export, block by block: of the last image alone.
        of_features = name in contract.get("features", ())
        truth, found = (truth[-1:], found[-1:]) if of_features else (truth[files:], found)
        if found.ndim > 2:  # a map: its values at the places that are stored
            found = found.reshape(len(found), -1, found.shape[-1])
            found = found[:, np.linspace(0, found.shape[1] - 1, truth.shape[1]).astype(int)]
        scale = np.maximum(truth, 1) if name == "novelty" else largest
        if name == "values":  # numbers, in their units
            scale = contract["task"]["scale"]
        elif name == "depth":
            scale = contract["task"]["typical"]
        elif name == "inverse_depth":  # of no unit
            scale = spread
        off, most = float(np.max(np.abs(found - truth) / scale)), proof["tolerance"][name]
        wrong |= not off <= most
        verdict = "as its model" if off <= most else "WRONG"
        print(f"{name}: largest difference {off:.2g}, at most {most:.2g}: {verdict}")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
