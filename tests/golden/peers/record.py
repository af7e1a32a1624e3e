"""Runs the cases in the packages they are of, and writes what came out beside this file.

What a case is stands in its JSON: of a new one, `package`, `class`, `config` (of timm: `model_args`
in it), `images` and `seed`; and `plain` where gradients are recorded, `call`, `like`, `resampled`.
"""

import copy
import importlib.metadata
import json
import math
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from tests.golden.peers import weights

Arrays = dict[str, np.ndarray]
COUNTERS = "num_batches_tracked"  # of batch norms: integers, which nothing reads
# Of ViTMAE, sines and cosines; of EoMT, buffers of its training.
FIXED = {"vit_mae": ("position_embeddings", "decoder_pos_embed")}
FIXED |= dict.fromkeys(("eomt", "eomt_dinov3"), ("attn_mask_probs", "empty_weight"))


def hugging_face(case: weights.Case) -> tuple[torch.nn.Module, dict[str, Any], Arrays]:
    """The model of a case as `from_pretrained` reads it, its config.json, and its tensors."""
    import transformers

    made = getattr(transformers, case["class"])
    model = made(made.config_class.from_dict(dict(case["config"])))
    fixed = (COUNTERS, *FIXED.get(model.config.model_type, ()))
    with tempfile.TemporaryDirectory() as folder:
        file = as_file(model, folder)
        for name in [name for name in file if not name.endswith(fixed)]:
            file[name] = weights.tensor(name, file[name].shape, case["seed"])
        if "tensors" in case:  # recorded before, maybe with other names or values that are fixed
            file = weights.tensors(case)
        save_file(file, Path(folder) / "model.safetensors", {"format": "pt"})
        model, info = made.from_pretrained(folder, output_loading_info=True)
        assert not any(info.values()), info
        config = json.loads((Path(folder) / "config.json").read_text())
        again = as_file(model, f"{folder}/again")  # the file itself may be mapped into memory
        assert all(np.array_equal(file[n], v) for n, v in again.items())
    return model, config, file


def as_file(model: torch.nn.Module, folder: str) -> Arrays:
    """The parameters of a model under the names and in the shapes of its file."""
    if not hasattr(model, "save_pretrained"):
        return {name: value.numpy() for name, value in model.state_dict().items()}
    model.save_pretrained(folder)
    return load_file(Path(folder) / "model.safetensors")


def timm(case: weights.Case) -> tuple[torch.nn.Module, dict[str, Any], Arrays]:
    """The model of a case, the config.json timm writes for it, and the tensors of its file."""
    import timm
    from timm.models import _hub, beit, eva, vision_transformer

    arguments = case["config"]["model_args"]
    # How it takes its positions to another size: as its entry point does, or as it runs.
    is_filtered = case.get("resampled", {}).get("how", "").startswith("checkpoint_filter_fn")
    if "resampled" in case and not is_filtered:
        arguments = {**arguments, "dynamic_img_size": True}
    model = timm.create_model(case["class"], **arguments)
    shapes = {name: tuple(values.shape) for name, values in model.state_dict().items()}
    file = {name: weights.tensor(name, shape, case["seed"]) for name, shape in shapes.items()}
    with tempfile.TemporaryDirectory() as folder:
        _hub.save_config_for_hf(model, str(Path(folder) / "config.json"))
        config = json.loads((Path(folder) / "config.json").read_text())
    state = {name: torch.from_numpy(value) for name, value in file.items()}
    if is_filtered:
        size = tuple(case["images"][1:3])
        model = timm.create_model(case["class"], **{**arguments, "img_size": size})
        # timm's filter of checkpoints for a model, as its entry point would apply it.
        kinds = {"Beit": beit, "Eva": eva}
        module = kinds.get(type(model).__name__, vision_transformer)
        state = module.checkpoint_filter_fn(state, model)
    model.load_state_dict(state)
    return model, config, file


def places(model: torch.nn.Module) -> tuple[str, list[str], list[str]]:
    """Where the blocks, the norm over all tokens after them and the heads of a model are."""
    names = [name for name, _ in model.named_modules()]
    blocks = next(name for name in names if re.search(r"(^|\.)(layers?|blocks)$", name))
    # CLIP's is of the class token alone; DPT's reads tokens before it.
    has_norm = not type(model).__name__.startswith(("CLIP", "DPT"))
    around = [name for name in names if blocks.startswith(name.rpartition(".")[0])]
    norms = [n for n in around if re.search(r"(^|\.)(norm|layernorm|post_layernorm)$", n)]
    heads = ("classifier", "cls_classifier", "distillation_classifier", "visual_projection")
    if not hasattr(model, "save_pretrained"):
        heads = ("head", "head_dist")
    return blocks, norms[:1] if has_norm else [], [name for name in heads if name in names]


def run(model: torch.nn.Module, images: torch.Tensor, call: Mapping[str, Any]) -> dict[str, Any]:
    """All that is recorded of a forward pass, as tensors."""
    blocks, norms, heads = places(model)
    seen: dict[str, Any] = {}

    def keep(name: str) -> Callable:
        return lambda module, inputs, output: seen.update({name: output, f"{name} in": inputs[0]})

    watched = {f"block_{i}": block for i, block in enumerate(model.get_submodule(blocks))}
    for norm in norms:
        if not isinstance(model.get_submodule(norm), torch.nn.Identity):
            watched["encoder_norm"] = model.get_submodule(norm)
    watched |= {name: model.get_submodule(name) for name in heads}
    hooks = [module.register_forward_hook(keep(name)) for name, module in watched.items()]
    encoder = model.vit if type(model).__name__ == "ViTMAEForPreTraining" else model
    out = encoder(images, **call)
    for hook in hooks:
        hook.remove()
    found = {name: seen[name] for name in watched if name in seen and name not in heads}
    if len(heads) == 2:
        found |= {"logits_class": seen[heads[0]], "logits_distillation": seen[heads[1]]}
    elif heads:
        found["pooled"] = seen[f"{heads[0]} in"]
    if torch.is_tensor(out):
        return found | ({"logits": out} if model.num_classes else {})
    if "masks_queries_logits" in out:
        return segments(model, out, found, images.shape[2:])
    for key in ("image_embeds", "logits", "predicted_depth"):
        if key in out:
            values = out[key]
            return found | {"logits": values.permute(0, 2, 3, 1) if values.ndim == 4 else values}
    pooled = getattr(out, "pooler_output", None)
    return found | ({} if pooled is None else {"pooled": pooled})


def segments(model: Any, out: Any, found: dict[str, Any], size: tuple[int, int]) -> dict[str, Any]:
    """What is recorded of EoMT: tokens without queries, logits, and the scores of every pixel."""
    length = 1 + model.config.num_register_tokens + math.prod(model.grid_size)
    found = {name: tokens[:, -length:] for name, tokens in found.items()}
    masks, classes = out.masks_queries_logits, out.class_queries_logits
    # As `EomtImageProcessor.post_process_semantic_segmentation`.
    wide = torch.nn.functional.interpolate(masks, size=size, mode="bilinear").sigmoid()
    scores = torch.einsum("bqc, bqhw -> bhwc", classes.softmax(dim=-1)[..., :-1], wide)
    found |= {"mask_logits": masks.permute(0, 2, 3, 1), "class_logits": classes}
    return found | {"logits": scores.log()}


def to_grid(model: torch.nn.Module, grid: tuple[int, int]) -> None:
    """Gives EoMT, which is of one size, the positions of another grid."""
    positions = getattr(model.embeddings, "position_embeddings", None)
    if positions is not None:
        table = positions.weight.T.reshape(1, -1, *model.grid_size)
        options = {"size": grid, "mode": "bicubic", "align_corners": False}
        table = torch.nn.functional.interpolate(table, **options)
        table = table.flatten(2)[0].T.detach().contiguous()
        model.embeddings.position_embeddings = torch.nn.Embedding.from_pretrained(table)
        model.embeddings.position_ids = torch.arange(len(table))[None]
    model.grid_size = grid


def rounding(model: Any, images: torch.Tensor, call: Any, arrays: Arrays) -> dict[str, float]:
    """How far each array is, at most, from a run in float64: the error of float32 in the peer."""
    with torch.no_grad():
        exact = run(copy.deepcopy(model).double(), images.double(), call)
    difference = {key: np.abs(exact[key].numpy() - value).max() for key, value in arrays.items()}
    return {key: float(f"{value:.1e}") for key, value in difference.items()}


def gradients(model: torch.nn.Module, names: list[str], seed: int) -> np.ndarray:
    """The two numbers of each tensor's gradient, in the order and shapes of the file."""
    slopes = copy.deepcopy(model)
    for slope, own in zip(slopes.parameters(), model.parameters(), strict=True):
        slope.data = torch.zeros_like(own) if own.grad is None else own.grad.clone()
    with tempfile.TemporaryDirectory() as folder:
        file = as_file(slopes, folder)
    return np.array([weights.summary(name, file[name], seed) for name in names])


def record(name: str) -> tuple[dict[str, Any], Arrays]:
    """What is to be written of a case: JSON and arrays."""
    own = json.loads((weights.FOLDER / f"{name}.json").read_text())
    case = {"name": name, **weights.case(name)}
    package, like, is_resampled = case["package"], own.get("like"), "resampled" in case
    torch.manual_seed(0)
    model, config, file = (hugging_face if package == "transformers" else timm)(case)
    model.eval().requires_grad_()
    case |= {"version": importlib.metadata.version(package), "config": config}
    case["tensors"] = {key: list(value.shape) for key, value in file.items()}
    made = {key: weights.tensor(key, value.shape, case["seed"]) for key, value in file.items()}
    fixed = {f"fixed {k}": v for k, v in file.items() if not np.array_equal(v, made[k])}
    case["fixed"] = [key.removeprefix("fixed ") for key in fixed]

    images = torch.from_numpy(weights.images(case)).permute(0, 3, 1, 2).contiguous()
    call = dict(case.get("call", {}))
    if call.get("noise") == "arange":  # ViTMAE shuffles its patches by it
        patch = model.config.patch_size
        count = (images.shape[2] // patch) * (images.shape[3] // patch)
        call["noise"] = torch.arange(count).float().expand(len(images), -1)
    images.requires_grad_()
    if is_resampled and hasattr(model, "grid_size"):
        to_grid(model, tuple(side // model.config.patch_size for side in images.shape[2:]))
    found = run(model, images, call)
    case["output"] = next(k for k in ("logits", "pooled", "encoder_norm") if k in found)
    arrays = {key: value.detach().numpy() for key, value in found.items()}
    case["rounding"] = rounding(model, images, call, arrays)
    if own.get("plain"):
        output = found[case["output"]]
        towards = torch.from_numpy(weights.direction(case, tuple(output.shape)))
        (output * towards).sum().backward()
        arrays["gradients"] = gradients(model, list(file), case["seed"])
        arrays["gradient_images"] = images.grad.permute(0, 2, 3, 1).numpy()
    else:
        last = max(key for key in arrays if key.startswith("block_"))
        arrays = {k: v for k, v in arrays.items() if not k.startswith("block_") or k == last}
        if like and not is_resampled:  # the plain case with another seed
            arrays.pop(last)
        if case["output"] != "encoder_norm":
            arrays.pop("encoder_norm", None)
    if not like:
        return case, arrays | fixed
    case["rounding"] = {k: v for k, v in case["rounding"].items() if k in arrays}
    return {key: case[key] for key in own}, arrays


def write(name: str, case: Mapping[str, Any], arrays: Arrays) -> None:
    """Writes a case: JSON of a line a key and a line a tensor, and arrays."""
    lines = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in case.items() if k != "tensors"]
    if "tensors" in case:
        shapes = (f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in case["tensors"].items())
        lines.append(' "tensors": {\n' + ",\n".join(shapes) + "\n }")
    (weights.FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    np.savez_compressed(weights.FOLDER / f"{name}.npz", **arrays)
    print(name, *(f"{key}{list(value.shape)}" for key, value in arrays.items()), flush=True)


if __name__ == "__main__":
    for each in sys.argv[1:] or sorted(path.stem for path in weights.FOLDER.glob("*.json")):
        write(each, *record(each))
