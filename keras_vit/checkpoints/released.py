"""The weights that their authors released, as one table.

Addresses: google-research/vision_transformer and big_vision (README, index.csv), timm 1.0.31
(`default_cfgs`), and the Hugging Face repositories of timm, google and facebook. Accuracies:
ImageNet-1k top-1 as published by `source`, at the row's own resolution.
"""

from dataclasses import dataclass, field
from typing import Any

from keras_vit.checkpoints.layouts import LAYOUTS
from keras_vit.models import FAMILIES
from keras_vit.models.variants import BIT_NAMES, size_arguments

GOOGLE_BUCKET = "https://storage.googleapis.com/vit_models"
BIT_BUCKET = "https://storage.googleapis.com/bit_models"
MIXER_BUCKET = "https://storage.googleapis.com/mixer_models"
BIG_VISION_BUCKET = "https://storage.googleapis.com/big_vision"
HUB = "https://huggingface.co/{}/resolve/main/model.safetensors"


@dataclass(frozen=True)
class Weights:
    """One file of released weights.

    Attributes:
        tag: What the weights are, as in `ViTB16(weights=tag)`.
        model: What they are for, such as `"ViT-B/16"`.
        url: Where they lie.
        layout: The layout they are in.
        pixels: Height and width of the images they were trained on last.
        num_classes: Classes of the head; 0 for none.
        top1: Published ImageNet-1k top-1 in per cent, or None.
        source: Who published it.
        arguments: What no tensor of the file tells, as arguments of `VisionTransformer`.
        licence: Of the weights.
    """

    tag: str
    model: str
    url: str
    layout: str
    pixels: int = 224
    num_classes: int = 1000
    top1: float | None = None
    source: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    licence: str = "Apache-2.0"

    @property
    def name(self) -> str:
        """`"MODEL:TAG"`, which `from_checkpoint` takes."""
        return f"{self.model}:{self.tag}"

    @property
    def sizes(self) -> dict[str, Any]:
        """The size arguments of the model."""
        return size_arguments(self.model)

    @property
    def megabytes(self) -> int:
        """The approximate size of the download: four bytes per parameter."""
        kind = self.model.split("-")[0]
        count = FAMILIES[kind if kind in FAMILIES else "hybrid"].cost
        cost = count(**self.sizes, image_size=self.pixels, num_classes=self.num_classes)
        return round(cost.parameters * 4 / 1e6)

    @property
    def preprocessing(self) -> str:
        """How the pixels are normalised."""
        origin = LAYOUTS[self.layout].origin
        return "ImageNet mean/std" if origin.include_preprocessing == "imagenet" else "0.5/0.5"

    @property
    def file_name(self) -> str:
        """Name in the cache."""
        suffix = ".npz" if self.url.endswith(".npz") else ".safetensors"
        return f"{self.model.replace('/', '_')}.{self.tag}{suffix}"


TIMM_RESULTS, README = "timm results", "vision_transformer README"


def _augreg() -> list[Weights]:
    """The files of "How to train your ViT?" that timm picked; at 384 those of the README."""
    # model: settings of the pretraining, learning rate of the fine-tuning, top-1, source
    at_224 = {
        "Ti/16": ("aug_none-wd_0.03-do_0.0-sd_0.0", "0.03", 75.45, TIMM_RESULTS),
        "S/32": ("aug_light1-wd_0.03-do_0.0-sd_0.0", "0.03", None, ""),
        "S/16": ("aug_light1-wd_0.03-do_0.0-sd_0.0", "0.03", 81.40, TIMM_RESULTS),
        "B/32": ("aug_medium1-wd_0.03-do_0.0-sd_0.0", "0.03", 80.73, TIMM_RESULTS),
        "B/16": ("aug_medium1-wd_0.1-do_0.0-sd_0.0", "0.01", 84.53, TIMM_RESULTS),
        "B/8": ("aug_medium1-wd_0.1-do_0.0-sd_0.0", "0.01", 85.84, TIMM_RESULTS),
        "L/16": ("aug_medium1-wd_0.1-do_0.1-sd_0.1", "0.01", None, ""),
    }
    at_384 = {
        "Ti/16": ("aug_none-wd_0.03-do_0.0-sd_0.0", "0.03", 78.22, README),
        "S/32": ("aug_none-wd_0.1-do_0.0-sd_0.0", "0.01", 79.58, README),
        "S/16": ("aug_light1-wd_0.03-do_0.0-sd_0.0", "0.03", 83.73, README),
        "B/32": ("aug_light1-wd_0.1-do_0.0-sd_0.0", "0.01", 83.59, README),
        "B/16": ("aug_medium1-wd_0.1-do_0.0-sd_0.0", "0.03", 85.49, README),
        "L/16": ("aug_medium1-wd_0.1-do_0.1-sd_0.1", "0.01", 87.10, TIMM_RESULTS),
    }
    rows = []

    def stem(model: str, upstream: str, data: str = "i21k") -> str:
        file = f"{model.replace('/', '_')}-{data}-300ep-lr_0.001-{upstream}"
        return f"{GOOGLE_BUCKET}/augreg/{file}"

    for model, (upstream, *_) in at_224.items():
        url = f"{stem(model, upstream)}.npz"
        rows.append(Weights("augreg_in21k", f"ViT-{model}", url, "google", 224, 21_843))
    for tag, pixels, table in (
        ("augreg_in21k_ft_in1k", 224, at_224),
        ("augreg_in21k_ft_in1k_384", 384, at_384),
    ):
        for model, (upstream, rate, top1, source) in table.items():
            url = f"{stem(model, upstream)}--imagenet2012-steps_20k-lr_{rate}-res_{pixels}.npz"
            rows.append(Weights(tag, f"ViT-{model}", url, "google", pixels, 1000, top1, source))
    in1k = {
        "S/16": ("aug_medium2-wd_0.1-do_0.0-sd_0.0", 78.84),
        "B/32": ("aug_medium2-wd_0.1-do_0.1-sd_0.1", None),
        "B/16": ("aug_strong2-wd_0.1-do_0.1-sd_0.1", 79.15),
    }
    for model, (upstream, top1) in in1k.items():
        for tag, pixels in (("augreg_in1k", 224), ("augreg_in1k_384", 384)):
            tuned = f"--imagenet2012-steps_20k-lr_0.01-res_{pixels}.npz"
            url = stem(model, upstream, "i1k") + tuned
            known = top1 if pixels == 224 else None
            source = TIMM_RESULTS if known else ""
            rows.append(Weights(tag, f"ViT-{model}", url, "google", pixels, 1000, known, source))
    for model, repository in (("B/16", "vit_base_patch16_224"), ("B/8", "vit_base_patch8_224")):
        url = HUB.format(f"timm/{repository}.augreg2_in21k_ft_in1k")
        rows.append(Weights("augreg2_in21k_ft_in1k", f"ViT-{model}", url, "timm"))
    return rows


def _original() -> list[Weights]:
    """The ViT paper's own, and those of sharpness-aware minimisation (Chen et al. 2021)."""

    def row(tag: str, model: str, path: str, *more: Any) -> Weights:
        return Weights(tag, f"ViT-{model}", f"{GOOGLE_BUCKET}/{path}.npz", "google", *more)

    rows = [
        row("orig_in21k", model, f"imagenet21k/ViT-{model.replace('/', '_')}", 224, 21_843)
        for model in ("B/8", "B/16", "B/32", "L/16", "L/32", "H/14")
    ]
    at_384 = {"B/8": None, "B/16": 84.21, "B/32": None, "L/16": None, "L/32": None}
    for model, top1 in at_384.items():
        source = TIMM_RESULTS if top1 else ""
        path = f"imagenet21k+imagenet2012/ViT-{model.replace('/', '_')}"
        rows.append(row("orig_in21k_ft_in1k_384", model, path, 384, 1000, top1, source))
    for model, top1 in {"B/16": 81.78, "L/16": None}.items():
        path = f"imagenet21k+imagenet2012/ViT-{model.replace('/', '_')}-224"
        source = TIMM_RESULTS if top1 else ""
        rows.append(row("orig_in21k_ft_in1k", model, path, 224, 1000, top1, source))
    sam = {"S/16": None, "B/32": 73.70, "B/16": 80.25, "L/16": None, "L/32": None}
    for model, top1 in sam.items():
        path = f"sam/ViT-{model.replace('/', '_')}"
        source = TIMM_RESULTS if top1 else ""
        rows.append(row("sam_in1k", model, path, 224, 1000, top1, source))
    return rows


def _big_vision() -> list[Weights]:
    """The plain ViT-S/16 of "Better plain ViT baselines", and FlexiViT with patches of any size."""
    rows = [
        Weights(
            f"big_vision_{epochs}ep_in1k",
            "ViT-S/16",
            f"{BIG_VISION_BUCKET}/vit_s16_i1k_{epochs}ep.npz",
            "big_vision",
            top1=top1,
            source="big_vision vit_s16_i1k.py" if top1 else "",
            arguments={"position_embedding": "sincos2d", "pooling": "gap"},
        )
        for epochs, top1 in ((90, 76.5), (150, None), (300, 80.0))
    ]
    flexible = {"patch_size": 16, "input_shape": (240, 240, 3)}
    table = [
        (letter, f"flexivit_{epochs}ep_in1k", f"{letter.lower()}_i1k{end}", 1000, top1)
        for letter, best in (("S", 82.58), ("B", 84.68), ("L", 85.65))
        for epochs, end, top1 in ((1200, "", best), (600, "_600ep", None), (300, "_300ep", None))
    ]
    table += [
        ("B", f"flexivit_{epochs}ep_in21k", f"b_i21k_{epochs}ep", 21_843, None)
        for epochs in (1000, 300)
    ]
    for letter, tag, end, classes, top1 in table:
        url = f"{BIG_VISION_BUCKET}/flexivit/flexivit_{end}.npz"
        source = TIMM_RESULTS if top1 else ""
        rows.append(
            Weights(tag, f"ViT-{letter}/16", url, "flexivit", 240, classes, top1, source, flexible)
        )
    return rows


def _facebook() -> list[Weights]:
    """DeiT, DeiT III, DINO and DINOv2, in timm's repositories and Facebook's own."""

    def row(
        tag: str,
        model: str,
        repository: str,
        pixels: int,
        num_classes: int = 1000,
        top1: float | None = None,
        source: str = "",
    ) -> Weights:
        url, name = HUB.format(f"timm/{repository}"), f"ViT-{model}"
        return Weights(tag, name, url, "timm_imagenet", pixels, num_classes, top1, source)

    rows = [
        row("deit_in1k", "Ti/16", "deit_tiny_patch16_224.fb_in1k", 224, 1000, 72.19, TIMM_RESULTS),
        row("deit_in1k", "S/16", "deit_small_patch16_224.fb_in1k", 224, 1000, 79.86, TIMM_RESULTS),
        row("deit_in1k", "B/16", "deit_base_patch16_224.fb_in1k", 224, 1000, 81.98, TIMM_RESULTS),
        row("deit_in1k_384", "B/16", "deit_base_patch16_384.fb_in1k", 384),
    ]
    deit3 = {  # model: name, top-1 of ImageNet-1k alone and after 22k (at 224), whether at 384 too
        "S/16": ("small_patch16", 81.4, 83.1, True),
        "M/16": ("medium_patch16", 83.0, 84.5, False),
        "B/16": ("base_patch16", 83.8, 85.7, True),
        "L/16": ("large_patch16", 84.9, 87.0, True),
        "H/14": ("huge_patch14", 85.2, 87.2, False),
    }
    for model, (name, in1k, in22k, also_384) in deit3.items():
        for tag, end, top1 in (
            ("deit3_in1k", "fb_in1k", in1k),
            ("deit3_in22k_ft_in1k", "fb_in22k_ft_in1k", in22k),
        ):
            rows.append(
                row(tag, model, f"deit3_{name}_224.{end}", 224, 1000, top1, "DeiT III README")
            )
            if also_384:
                rows.append(row(f"{tag}_384", model, f"deit3_{name}_384.{end}", 384))
    for model in ("S/16", "S/8", "B/16", "B/8"):
        size, patch = {"S": "small", "B": "base"}[model[0]], model[2:]
        rows.append(row("dino", model, f"vit_{size}_patch{patch}_224.dino", 224, 0))
    dinov2 = {  # linear probe, without and with registers
        "S/14": ("small", 81.1, 80.9),
        "B/14": ("base", 84.5, 84.6),
        "L/14": ("large", 86.3, 86.7),
        "giant/14": ("giant", 86.5, 87.1),
    }
    source = "DINOv2 README, linear probe"
    for model, (name, plain, registers) in dinov2.items():
        for tag, infix, top1 in (("dinov2", "", plain), ("dinov2_reg4", "reg4_", registers)):
            repository = f"vit_{name}_patch14_{infix}dinov2.lvd142m"
            rows.append(row(tag, model, repository, 518, 0, top1, source))
        url = HUB.format(f"facebook/dinov2-{name}")
        rows.append(
            Weights("hf_dinov2", f"ViT-{model}", url, "huggingface_dinov2", 518, 0, plain, source)
        )  # fmt: skip
    return rows


def _google_on_the_hub() -> list[Weights]:
    """Google's repositories at Hugging Face, by their own numerics (epsilon 1e-12, erf GELU)."""
    table = (
        ("hf_in21k", "google/vit-base-patch16-224-in21k", 224, 0, None),
        ("hf_in21k_ft_in1k", "google/vit-base-patch16-224", 224, 1000, 81.78),
        ("hf_in21k_ft_in1k_384", "google/vit-base-patch16-384", 384, 1000, 84.21),
    )
    return [
        Weights(tag, "ViT-B/16", HUB.format(repository), "huggingface", pixels, classes, top1,
                TIMM_RESULTS if top1 else "")
        for tag, repository, pixels, classes, top1 in table
    ]  # fmt: skip


def _hybrid() -> list[Weights]:
    """Hybrids of the ViT paper, and those of AugReg whose settings the README recommends."""
    # model: settings of the pretraining, learning rate of the fine-tuning at 384, top-1 there
    augreg = {
        "R+ViT-Ti/16": ("R_Ti_16", "aug_none-wd_0.03-do_0.0-sd_0.0", "0.03", 75.40),
        "R26+ViT-S/32": ("R26_S_32", "aug_light1-wd_0.1-do_0.0-sd_0.0", "0.01", 83.85),
        "R50+ViT-L/32": ("R50_L_32", "aug_medium1-wd_0.1-do_0.1-sd_0.1", "0.01", 85.99),
    }
    rows = []
    for model, (stem, settings, rate, top1) in augreg.items():
        url = f"{GOOGLE_BUCKET}/augreg/{stem}-i21k-300ep-lr_0.001-{settings}"
        tuned = f"{url}--imagenet2012-steps_20k-lr_{rate}-res_384.npz"
        rows += [
            Weights("augreg_in21k", model, f"{url}.npz", "google", 224, 21_843),
            Weights("augreg_in21k_ft_in1k_384", model, tuned, "google", 384, 1000, top1, README),
        ]
    for model in ("R26+ViT-B/32", "R50+ViT-B/16", "R50+ViT-L/32"):
        url = f"{GOOGLE_BUCKET}/imagenet21k/{model.replace('/', '_')}.npz"
        rows.append(Weights("orig_in21k", model, url, "google", 224, 21_843))
    url = f"{GOOGLE_BUCKET}/imagenet21k+imagenet2012/R50+ViT-B_16.npz"
    rows.append(Weights("orig_in21k_ft_in1k_384", "R50+ViT-B/16", url, "google", 384))
    return rows


def _bit() -> list[Weights]:
    """BiT: trained on ImageNet (S), on ImageNet-21k (M), and that fine-tuned on ImageNet."""
    # tag, file, classes, pixels: those of BiT's rule for fine-tuning (bit_hyperrule.py)
    table = (
        ("bit_s_in1k", "S-{}", 1000, 224),
        ("bit_m_in21k", "M-{}", 21_843, 224),
        ("bit_m_in21k_ft_in1k", "M-{}-ILSVRC2012", 1000, 480),
    )
    return [
        Weights(
            tag,
            model,
            f"{BIT_BUCKET}/BiT-{file.format(model.removeprefix('BiT-'))}.npz",
            "bit",
            pixels,
            classes,
            arguments={"input_shape": (pixels, pixels, 3)},
        )
        for model in BIT_NAMES
        for tag, file, classes, pixels in table
    ]


def _mixer() -> list[Weights]:
    """MLP-Mixer's own, and those of SAM (Chen et al. 2021) and GSAM (Zhuang et al. 2022).

    No list of the files under `gsam/` was published: their names are those of the others.
    """
    table = (
        ("in1k", "imagenet1k", ("B/16", "L/16"), 1000),
        ("in21k", "imagenet21k", ("B/16", "L/16"), 21_843),
        ("sam_in1k", "sam", ("B/16", "B/32"), 1000),
        ("gsam_in1k", "gsam", ("S/8", "S/16", "S/32", "B/16", "B/32"), 1000),
    )
    return [
        Weights(
            tag,
            f"Mixer-{model}",
            f"{MIXER_BUCKET}/{folder}/Mixer-{model.replace('/', '_')}.npz",
            "mixer",
            num_classes=classes,
        )
        for tag, folder, models, classes in table
        for model in models
    ]


RELEASED: tuple[Weights, ...] = (
    *_augreg(),
    *_original(),
    *_hybrid(),
    *_bit(),
    *_mixer(),
    *_big_vision(),
    *_facebook(),
    *_google_on_the_hub(),
)
