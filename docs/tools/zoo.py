"""The model zoo: every row of the catalog of released weights, with what it costs.

    python -m docs.tools.zoo           # prints the tables as Markdown

Parameters and multiply-accumulates are computed (`keras_vit.models.cost`) for the model that the
row's weights make; license, file and accuracy are the catalog's, `released.csv`.
"""

import fnmatch
from collections.abc import Iterator
from functools import partial
from typing import Any

from keras_vit.models import FAMILIES
from keras_vit.models.cost import Cost, cost_of
from keras_vit.models.other_names import of_other_package
from keras_vit.models.skeleton import without_values
from keras_vit.models.variants import HYBRIDS
from keras_vit.weights.released import RELEASED, Weights

# Heading, where the weights come from, and patterns of `LAYOUT:TAG`; the first match counts.
GROUPS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "AugReg",
        "[How to train your ViT?](https://arxiv.org/abs/2106.10270) (Steiner et al. 2021), trained "
        "on ImageNet-21k (`i21k`) or ImageNet; `augreg2` are fine-tuned again by timm.",
        ("*:augreg_*", "*:augreg2_*"),
    ),
    (
        "The paper's ViT",
        "[An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929) (Dosovitskiy et al. "
        "2021), with Google's conversions at Hugging Face.",
        ("google:orig_*", "huggingface:hf_*"),
    ),
    (
        "SAM",
        "[When Vision Transformers Outperform ResNets](https://arxiv.org/abs/2106.01548) (Chen et "
        "al. 2021), and GSAM, [Surrogate Gap Minimization](https://arxiv.org/abs/2203.08065) "
        "(Zhuang et al. 2022), trained on ImageNet alone.",
        ("*:sam_*", "*:gsam_*"),
    ),
    (
        "Better plain ViT",
        "[Better plain ViT baselines for ImageNet-1k](https://arxiv.org/abs/2205.01580) (Beyer et "
        "al. 2022).",
        ("big_vision:*",),
    ),
    (
        "FlexiViT",
        "[FlexiViT](https://arxiv.org/abs/2212.08013) (Beyer et al. 2023): patches of any size, 16 "
        "in this table.",
        ("flexivit:*",),
    ),
    (
        "DeiT",
        "[Training data-efficient image transformers](https://arxiv.org/abs/2012.12877) (Touvron "
        "et al. 2021), also distilled.",
        ("*:deit_*",),
    ),
    (
        "DeiT III",
        "[DeiT III: Revenge of the ViT](https://arxiv.org/abs/2204.07118) (Touvron et al. 2022).",
        ("*:deit3_*",),
    ),
    (
        "DINO and DINOv2",
        "[DINO](https://arxiv.org/abs/2104.14294) (Caron et al. 2021), "
        "[DINOv2](https://arxiv.org/abs/2304.07193) (Oquab et al. 2023) and [registers]"
        "(https://arxiv.org/abs/2309.16588) (Darcet et al. 2023): features without labels. `hf_` "
        "are the files of Hugging Face's own layout. The published accuracy is that of a linear "
        "classifier.",
        ("*:dino", "*:dinov2*", "*:hf_dinov2*"),
    ),
    (
        "DINOv3",
        "[DINOv3](https://arxiv.org/abs/2508.10104) (Siméoni et al. 2025), under a license of its "
        "own.",
        ("*:dinov3*",),
    ),
    (
        "CLIP",
        "[Learning Transferable Visual Models](https://arxiv.org/abs/2103.00020) (Radford et al. "
        "2021): the vision tower. Its classes are the dimensions of the space shared with texts.",
        ("*:clip_*",),
    ),
    (
        "SigLIP",
        "[Sigmoid Loss for Language Image Pre-Training](https://arxiv.org/abs/2303.15343) (Zhai et "
        "al. 2023) and [SigLIP 2](https://arxiv.org/abs/2502.14786) (Tschannen et al. 2025): the "
        "vision tower. The download also holds the text tower, which the table does not count.",
        ("*:siglip*",),
    ),
    (
        "MAE",
        "[Masked Autoencoders Are Scalable Vision Learners](https://arxiv.org/abs/2111.06377) (He "
        "et al. 2021), before fine-tuning.",
        ("*:mae",),
    ),
    (
        "BEiT",
        "[BEiT](https://arxiv.org/abs/2106.08254) (Bao et al. 2021), fine-tuned on ImageNet-21k, "
        "then on ImageNet.",
        ("*:beit_*",),
    ),
    (
        "EVA-02",
        "[EVA-02](https://arxiv.org/abs/2303.11331) (Fang et al. 2023), fine-tuned on ImageNet.",
        ("*:eva02_*",),
    ),
    (
        "BiT",
        "[Big Transfer](https://arxiv.org/abs/1912.11370) (Kolesnikov et al. 2020): ResNets "
        "trained on ImageNet (`bit_s`) and ImageNet-21k (`bit_m`).",
        ("bit:*",),
    ),
    (
        "MLP-Mixer",
        "[MLP-Mixer](https://arxiv.org/abs/2105.01601) (Tolstikhin et al. 2021).",
        ("mixer:in*",),
    ),
)
HEAD = ("weights", "M parameters", "GMACs", "pixels", "classes", "MB", "top-1", "license", "file")
# Mean of the patches.
NO_CLASS_TOKEN: dict[str, Any] = {"class_token": False, "pooling": "gap"}


def architecture(row: Weights) -> dict[str, Any]:
    """The arguments of the model that a row's weights make."""
    named = of_other_package(_repository(row)) if "huggingface.co" in row.url else None
    arguments = dict(named.arguments) if named else dict(row.arguments)
    if row.layout == "big_vision" or ("gsam" in row.tag and "ViT" in row.model):
        arguments |= NO_CLASS_TOKEN
    if row.tag in ("orig_in21k", "hf_in21k"):  # the tanh layer, as wide as the tokens
        arguments["representation_size"] = row.sizes["hidden_dim"]
    sizes = {**row.sizes, **arguments, "num_classes": row.num_classes}
    return {**sizes, "input_shape": (row.pixels, row.pixels, 3)}


def cost_of_row(row: Weights) -> Cost:
    """What the row's model costs for one image at the row's size."""
    family = FAMILIES["hybrid" if row.model in HYBRIDS else row.model.partition("-")[0]]
    return cost_of(without_values(partial(family.model, **architecture(row))))


def group_of(row: Weights) -> str:
    """The heading of a row.

    Raises:
        LookupError: No group has it.
    """
    for title, _, patterns in GROUPS:
        if any(fnmatch.fnmatch(f"{row.layout}:{row.tag}", pattern) for pattern in patterns):
            return title
    raise LookupError(f"No group of docs/tools/zoo.py has {row.layout}:{row.tag}. Add a pattern.")


def markdown() -> str:
    """All tables."""
    groups: dict[str, list[Weights]] = {title: [] for title, _, _ in GROUPS}
    for row in RELEASED:
        groups[group_of(row)].append(row)
    return "\n".join(line for title, source, _ in GROUPS for line in _table(title, source, groups))


def _table(title: str, source: str, groups: dict[str, list[Weights]]) -> Iterator[str]:
    yield f"## {title}\n\n{source}\n"
    yield ":::{container} zoo\n"
    yield f"| {' | '.join(HEAD)} |\n|---|{'---:|' * 6}---|---|"
    for row in groups[title]:
        yield f"| {' | '.join(_cells(row))} |"
    yield "\n:::\n"


def _cells(row: Weights) -> tuple[str, ...]:
    cost = cost_of_row(row)
    guess = " (name guessed)" if row.url_is_guessed else ""
    return (
        f"`{row.name}`",
        f"{cost.parameters / 1e6:,.1f}",
        f"{cost.macs / 1e9:,.1f}",
        str(row.pixels),
        f"{row.num_classes:,}" if row.num_classes else "–",
        f"{row.megabytes:,}",
        f"{row.top1:.2f}".rstrip("0").rstrip(".") + f" ({row.source})" if row.top1 else "–",
        row.license,
        f"[{_origin(row)}]({row.url}){guess}",
    )


def _origin(row: Weights) -> str:
    return _repository(row) if "huggingface.co" in row.url else f"gs://{row.url.split('/')[3]}"


def _repository(row: Weights) -> str:
    return "/".join(row.url.split("/")[3:5])


if __name__ == "__main__":
    print(markdown())
