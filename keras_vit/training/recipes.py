"""What `compile` and `fit` need, as a table: one row per way of training.

    recipes.get("finetune/flowers") ── .scaled(steps=200, batch_size=32) ──► compile_model ──► fit

Numbers are those of the sources; where a source does not give one, the row names another source.
"""

import math
from collections.abc import Container
from dataclasses import dataclass, field, replace
from typing import Any

from keras_vit._base.errors import (
    check_above_zero,
    check_choice,
    check_finite,
    check_positive,
    check_rate,
    did_you_mean,
)
from keras_vit.data import AUGMENTATIONS, Augmentation
from keras_vit.data.eval_transform import VIEW_NAMES
from keras_vit.models.variants import size_arguments
from keras_vit.tasks import TASKS
from keras_vit.tasks.balance import BALANCES

__all__ = ["RECIPES", "Recipe", "bit_hyperrule", "get"]

IMAGENET = 1_281_167  # training images
IMAGENET_21K = 12_746_000  # without the 51,200 of AugReg's validation

_NON_NEGATIVE = (
    *("epochs", "steps", "examples", "warmup", "weight_decay", "end"),
    *("mixup", "cutmix", "rho", "rho_min", "alpha"),
)


# Of every task: which of them a model's task has is known when it is compiled.
LOSSES = tuple(name for task in TASKS.values() for name in task.losses)


@dataclass(frozen=True)
class Recipe:
    """A way of training, complete enough to run.

    Attributes:
        source: Where the numbers come from.
        model: Arguments of `VisionTransformer` where no named model is asked for.
        image_size: Height and width of the images in pixels.
        epochs: Passes over the training images; 0 where `steps` is given.
        batch_size: Images per update.
        learning_rate: Peak learning rate, after a linear warm-up from 0.
        warmup: Steps of the warm-up; below 1: a fraction of all steps.
        weight_decay: On kernels only (see `parameter_groups`).
        label_smoothing: Fraction of a label that is spread over all classes.
        mixup: Parameter of mixup's Beta distribution; 0 for none.
        clip_norm: Largest global norm of the gradients of a step; None for no clipping.
        augmentation: Augmentation of training images.
        hardware: What the numbers are meant for, and what they reach there.
        steps: Updates; 0 where `epochs` is given.
        examples: Training images of the data that the numbers are for; 0 for any.
        optimizer: `"sgd"` or `"adam"` (see `optimizers`).
        state_dtype: Dtype of the momentum.
        decay: How the learning rate falls (see `schedules.WarmupDecay`).
        end: Learning rate at the end.
        boundaries: For the decay `"stair"`: fractions of the steps at which it falls to a tenth.
        decay_follows: `"learning_rate"`: weight decay as in AdamW and the papers;
            `"schedule"`: as in big_vision's configurations, whatever the learning rate.
        layer_decay: Factor of the learning rate from layer to layer; 1 for none.
        loss: `"softmax"` or `"sigmoid"`, or a loss of another task: see `Task.losses`.
        head_bias: Initial bias of a new head, which keeps the first sigmoid loss small.
        cutmix: Parameter of CutMix's Beta distribution; 0 for none.
        dropout: For models that have it.
        stochastic_depth: For models that have it.
        ema: Momentum of a moving average of the weights, which they become at the end of `fit`;
            each validation, and `best.keras`, are of the weights before. 0 for none.
        accumulation: Batches whose gradients are summed up to one update.
        rho: SAM's neighborhood size (see `sam`); 0 for plain steps.
        rho_min: GSAM: rho at the end of the schedule; None for `rho` throughout.
        alpha: GSAM's alpha; 0 for SAM.
        scaling: How the learning rate scales with the batch: `"linear"` (Goyal et al. 2017) or
            `"sqrt"` (for Adam, Malladi et al. 2022).
        learning_rates: Learning rates that the source recommends to try.
        probe_first: Whether the head starts from a linear probe on the frozen features instead of
            from zeros (LP-FT, Kumar et al. 2022).
        tuned_share: Share of the trained weights in the average with those that training started
            from (alpha of WiSE-FT, Wortsman et al. 2022), but for a new head; 1 for the trained
            weights alone.
        eval_size: Height and width of the images after training, larger than `image_size`: a crop
            shows a flower larger than the whole photograph does (FixRes, Touvron et al. 2019). 0
            for `image_size`.
        views: What predictions are averaged over: a key of `keras_vit.models.views.VIEWS`.
        held_out: Fraction of the training images that is not trained on, but sets the temperature
            of the probabilities (Guo et al. 2017); 0 for none.
        balance: What makes up for classes with few images: `"weights"` of classes in the loss,
            `"logits"` that are adjusted by the priors of classes in it, `"sampling"` of images, or
            `"none"` (see `keras_vit.tasks.balance`).
        frozen: Whether the head alone is trained, and all else stays as it is.

    Raises:
        ValueError: A number is out of range, or a name is unknown.
    """

    source: str
    model: dict[str, Any]
    image_size: int
    epochs: int
    batch_size: int
    learning_rate: float
    warmup: float = 0.1
    weight_decay: float = 0.05
    label_smoothing: float = 0.1
    mixup: float = 0.0
    clip_norm: float | None = 1.0
    augmentation: Augmentation = field(default_factory=Augmentation)
    hardware: str = ""
    steps: int = 0
    examples: int = 0
    optimizer: str = "adam"
    state_dtype: str = "float32"
    decay: str = "cosine"
    end: float = 0.0
    boundaries: tuple[float, ...] = ()
    decay_follows: str = "learning_rate"
    layer_decay: float = 1.0
    loss: str = "softmax"
    head_bias: float = 0.0
    cutmix: float = 0.0
    dropout: float = 0.0
    stochastic_depth: float = 0.0
    ema: float = 0.0
    accumulation: int = 1
    rho: float = 0.0
    rho_min: float | None = None
    alpha: float = 0.0
    scaling: str = "linear"
    learning_rates: tuple[float, ...] = ()
    probe_first: bool = False
    tuned_share: float = 1.0
    eval_size: int = 0
    views: str = "one"
    held_out: float = 0.0
    balance: str = "none"
    frozen: bool = False

    def __post_init__(self) -> None:
        check_choice(self.loss, "loss", LOSSES)
        check_choice(self.balance, "balance", BALANCES)
        check_choice(self.scaling, "scaling", ("linear", "sqrt"))
        check_choice(self.decay_follows, "decay_follows", ("learning_rate", "schedule"))
        if self.epochs <= 0 and self.steps <= 0:
            raise ValueError(f"epochs={self.epochs}, steps={self.steps}: give one of them.")
        check_positive(
            image_size=self.image_size, batch_size=self.batch_size, accumulation=self.accumulation
        )
        if self.batch_size < self.accumulation:
            raise ValueError(
                f"batch_size={self.batch_size} is below accumulation={self.accumulation}, the "
                "parts of a batch: give a larger batch_size, or accumulation=1."
            )
        for name in ("mixup", "cutmix"):  # or they would be lost: the recipe's own count
            if value := getattr(self.augmentation, name):
                raise ValueError(
                    f"augmentation has {name}={value!r}, which a recipe has itself: give it there, "
                    "or the augmentation to `with_augmentation`."
                )
        check_choice(self.views, "views", VIEW_NAMES)
        rates = ("label_smoothing", "dropout", "stochastic_depth", "ema", "held_out")
        check_rate(**self._present(*rates))
        if not 0 < self.tuned_share <= 1:
            raise ValueError(f"tuned_share={self.tuned_share!r} must lie in (0, 1], such as 0.8.")
        if self.eval_size and self.eval_size < self.image_size:
            raise ValueError(
                f"eval_size={self.eval_size!r} must be 0, or at least image_size={self.image_size}."
            )
        check_above_zero(**self._present("learning_rate", "clip_norm", "layer_decay"))
        if self.layer_decay > 1:
            raise ValueError(f"layer_decay={self.layer_decay!r} must be at most 1, such as 0.65.")
        for name, value in self._present(*_NON_NEGATIVE).items():
            check_finite(**{name: value})
            if value < 0:
                raise ValueError(f"{name}={value!r} must be 0 or more.")

    def _present(self, *names: str) -> dict[str, Any]:
        """Return the fields of those names that are not None."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @property
    def augment(self) -> Augmentation:
        """The augmentation with mixup and CutMix, as `keras_vit.data.pipeline` takes it."""
        return replace(self.augmentation, mixup=self.mixup, cutmix=self.cutmix)

    def with_augmentation(self, augmentation: Augmentation) -> "Recipe":
        """Return the recipe with another augmentation, and its mixup and CutMix.

        Example:

        >>> from keras_vit.data import Augmentation
        >>> from keras_vit.training import recipes
        >>> recipes.get("deit").with_augmentation(Augmentation(cutmix=0.5)).cutmix
        0.5
        """
        alone = replace(augmentation, mixup=0.0, cutmix=0.0)
        mixup, cutmix = augmentation.mixup, augmentation.cutmix
        return replace(self, augmentation=alone, mixup=mixup, cutmix=cutmix)

    def rates(self, accepted: Container[str]) -> dict[str, float]:
        """Dropout and stochastic depth where they are above 0 and among a model's arguments."""
        rates = {"dropout": self.dropout, "stochastic_depth": self.stochastic_depth}
        return {name: rate for name, rate in rates.items() if rate and name in accepted}

    def total_steps(self, examples: int) -> int:
        """Updates of the whole training on this many images; an epoch's last batch may be short."""
        return self.steps or self.epochs * -(-examples // self.batch_size)

    def warmup_steps(self, total_steps: int) -> int:
        """Updates of the warm-up; a fraction leaves at least one update after it."""
        if self.warmup >= 1 or not self.warmup:
            return int(self.warmup)
        return min(max(round(self.warmup * total_steps), 1), total_steps - 1)

    def scaled(self, steps: int | None = None, batch_size: int | None = None) -> "Recipe":
        """Return the recipe for another length or batch size, for instance for a smaller machine.

        The learning rate scales with the batch by the rule in `scaling`; the warm-up keeps its
        fraction of the steps. With `batch_size` alone, the number of images seen stays.

        Args:
            steps: Updates of the whole training.
            batch_size: Images per update.

        Raises:
            ValueError: A number is below 1.

        Example:

        >>> from keras_vit.training import recipes
        >>> recipe = recipes.get("finetune/flowers").scaled(steps=250, batch_size=64)
        >>> recipe.learning_rate, recipe.warmup_steps(250)
        (0.000375, 50)
        """
        batch_size = self.batch_size if batch_size is None else batch_size
        check_positive(batch_size=batch_size)
        ratio = batch_size / self.batch_size
        parts = min(self.accumulation, batch_size)
        if steps is not None:
            check_positive(steps=steps)
        elif self.steps:
            steps = max(round(self.steps / ratio), 1)
        warmup = self.warmup
        if warmup >= 1:
            before = self.total_steps(self.examples)
            other = replace(self, batch_size=batch_size, accumulation=parts)
            after = steps or other.total_steps(self.examples)
            # Of epochs of any number of images, it shows as many as before; of `steps`, it stays.
            share = after / before if before else 1 if steps else 1 / ratio
            warmup = max(round(warmup * share), 1)
        rate = ratio if self.scaling == "linear" else math.sqrt(ratio)
        return replace(
            self,
            steps=steps or 0,
            batch_size=batch_size,
            accumulation=parts,
            warmup=warmup,
            learning_rate=self.learning_rate * rate,
            end=self.end * rate,
            learning_rates=tuple(value * rate for value in self.learning_rates),
        )


# What both models that are trained from scratch here have in common.
_SMALL_VIT = {"depth": 4, "num_heads": 4, "position_embedding": "sincos2d", "stochastic_depth": 0.1}

# What recipes that tune a pretrained model, or train one on what it has learned, have in common.
_PRETRAINED: dict[str, Any] = {
    "model": size_arguments("ViT-Ti/16"),
    "image_size": 224,
    "label_smoothing": 0.0,
    "scaling": "sqrt",
}
_FROZEN_PIXELS: dict[str, Any] = {
    **_PRETRAINED,
    "epochs": 40,
    "batch_size": 16,
    "warmup": 0.04,
    "weight_decay": 1e-3,
    "augmentation": Augmentation(min_area=0.25),
    "frozen": True,
}
# What all recipes for pre-training at 224 pixels with batches of 4096 have in common.
_PRETRAINING: dict[str, Any] = {
    "image_size": 224,
    "batch_size": 4096,
    "warmup": 10_000,
    "label_smoothing": 0.0,
    "scaling": "sqrt",
}

RECIPES = {
    "digits": Recipe(
        source="Tuned here for scikit-learn's 8 x 8 digits.",
        hardware="Two CPU cores: a minute.",
        model={
            **{"conv_stem": ((32, 1), (64, 1)), "patch_size": 4, "hidden_dim": 96, "mlp_dim": 192},
            **{**_SMALL_VIT, "depth": 2},
        },
        image_size=8,
        epochs=48,
        batch_size=64,
        learning_rate=2e-3,
        warmup=0.08,
        label_smoothing=0.02,
        scaling="sqrt",
        augmentation=Augmentation(
            crop="resize", flip=False, shift=1, rotation=15, zoom=0.12, shear=0.2
        ),
    ),
    "small_data": Recipe(
        source="Tuned here for a few thousand photographs from scratch.",
        hardware="Two CPU cores: minutes.",
        model={
            **{"patch_size": 16, "hidden_dim": 128, "mlp_dim": 256, "pooling": "gap"},
            **_SMALL_VIT,
        },
        image_size=64,
        epochs=90,
        batch_size=64,
        learning_rate=1.5e-3,
        warmup=0.055,
        mixup=0.2,
        scaling="sqrt",
        augmentation=Augmentation(min_area=0.3),
    ),
    "finetune_small": Recipe(
        source="Tuned here for pretrained models and a few thousand photographs.",
        hardware="Two CPU cores: about ten minutes with ViT-Ti/16 and 1,800 photographs.",
        **_PRETRAINED,
        epochs=6,
        batch_size=32,
        learning_rate=6e-4,
        layer_decay=0.65,
        mixup=0.1,
        augmentation=Augmentation(min_area=0.3),
    ),
    "finetune_few": Recipe(
        source="A linear probe first, then all weights at a low learning rate (LP-FT, Kumar et al. "
        "2022) under RandAugment; tuned here for about ten photographs per class.",
        hardware="Two CPU cores: about four minutes with ViT-Ti/16 and 50 photographs.",
        **_PRETRAINED,
        epochs=60,
        batch_size=32,
        learning_rate=1.8e-4,
        layer_decay=0.65,
        augmentation=Augmentation(min_area=0.3, rand_augment=(2, 12)),
        probe_first=True,
        views="flip",
    ),
    "linear_pixels": Recipe(
        source="A linear head on the frozen features of every patch, as DINOv3 is evaluated "
        "(Siméoni et al. 2025, section 6.1.2), at five times its learning rate, fewer steps.",
        hardware="Two CPU cores: about five minutes with ViT-Ti/16 and 100 photographs.",
        learning_rate=5e-3,
        **_FROZEN_PIXELS,
    ),
    "dpt_pixels": Recipe(
        source="The DPT head (Ranftl et al. 2021) on frozen features, by the recipe linear_pixels "
        "at a fifth of its learning rate: convolutions begin at random, a linear layer at zero.",
        hardware="Two CPU cores: about ten minutes with ViT-Ti/16 and 100 photographs.",
        learning_rate=1e-3,
        **_FROZEN_PIXELS,
    ),
    "eomt_pixels": Recipe(
        source="EoMT (Kerssies et al. 2025, section 4.1) and its released code: AdamW, layer "
        "decay, gradients clipped at 0.01; a higher learning rate for fewer steps.",
        hardware="Two CPU cores: about ten minutes with ViT-Ti/16 and 100 photographs.",
        **_PRETRAINED,
        epochs=40,
        batch_size=16,
        learning_rate=1e-3,
        clip_norm=0.01,
        decay="linear",
        layer_decay=0.8,
        augmentation=Augmentation(min_area=0.25),
    ),
    "finetune_measured": Recipe(
        source="All weights from the best head on frozen features (LP-FT, Kumar et al. 2022), with "
        "RandAugment; tuned here for five to ten photographs per class.",
        hardware="Two CPU cores: about five minutes with ViT-Ti/16 and 50 photographs.",
        **_PRETRAINED,
        epochs=30,
        batch_size=32,
        learning_rate=4e-4,
        layer_decay=0.65,
        augmentation=Augmentation(min_area=0.3, rand_augment=(2, 12)),
        views="flip",
    ),
    "better_plain_vit": Recipe(
        source='"Better plain ViT baselines for ImageNet-1k" (Beyer et al. 2022); big_vision '
        "configs/vit_s16_i1k.py.",
        hardware="TPU v3-8: 6 to 7 hours for 90 epochs, 76.5 %; 300 epochs: 80.0 %.",
        model={
            **size_arguments("ViT-S/16"),
            "pooling": "gap",
            "position_embedding": "sincos2d",
            "representation_size": 384,
        },
        image_size=224,
        epochs=90,
        examples=IMAGENET,
        batch_size=1024,
        learning_rate=1e-3,
        warmup=10_000,
        weight_decay=1e-4,
        decay_follows="schedule",
        state_dtype="bfloat16",
        label_smoothing=0.0,
        mixup=0.2,
        scaling="sqrt",
        augmentation=Augmentation(rand_augment=(2, 10)),
    ),
    "deit": Recipe(
        source='"Training data-efficient image transformers" (Touvron et al. 2021), table 9; the '
        "learning rate is 5e-4 per 512 images.",
        hardware="8 V100: 53 hours for DeiT-B, 81.8 %; S 79.8 %, Ti 72.2 %.",
        model={**size_arguments("ViT-S/16"), "activation": "gelu"},
        image_size=224,
        epochs=300,
        examples=IMAGENET,
        batch_size=1024,
        learning_rate=1e-3,
        warmup=5 * 1252,  # five epochs
        end=1e-5,
        clip_norm=None,
        mixup=0.8,
        cutmix=1.0,
        stochastic_depth=0.1,
        augmentation=Augmentation(rand_augment=(2, 9), erasing=0.25),
    ),
    "mixer": Recipe(
        source='"MLP-Mixer" (Tolstikhin et al. 2021); big_vision configs/mlp_mixer_i1k.py.',
        hardware="TPU v3-128: 2 h 11 min for 300 epochs of Mixer-B/16, 76.3 %; 60 epochs: 70.5 %.",
        **_PRETRAINING,
        model={},  # not a Vision Transformer: name a Mixer
        epochs=300,
        examples=IMAGENET,
        learning_rate=1e-3,
        decay="linear",
        end=1e-8,
        weight_decay=1e-4,
        decay_follows="schedule",
        loss="sigmoid",
        head_bias=-6.9,
        mixup=0.5,
        stochastic_depth=0.1,
        augmentation=Augmentation(rand_augment=(2, 15)),
    ),
}

RECIPES["from_scratch"] = replace(
    RECIPES["small_data"],
    source="Tuned here for a few thousand photographs from scratch: a convolutional stem (Xiao et "
    "al. 2021), four times as many tokens as `small_data`, CutMix, a longer training, and "
    "predictions averaged with those of the mirror image.",
    hardware="Two CPU cores: with 1,800 photographs about a quarter of an hour in mixed_bfloat16, "
    "where the processor multiplies in bfloat16 (AMX), and 20 minutes in float32.",
    model={
        **RECIPES["small_data"].model,
        "conv_stem": ((32, 2), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1)),
        "patch_size": 1,
        "depth": 3,
    },
    epochs=180,
    cutmix=0.5,
    views="flip",
)

RECIPES["from_scratch_tiny"] = replace(
    RECIPES["from_scratch"],
    source="Tuned here for a few thousand images of about 32 pixels, such as CIFAR-10's: "
    "`from_scratch` with a stem that keeps their size at first.",
    hardware="Two CPU cores: about a quarter of an hour with 4,000 images.",
    model={
        **RECIPES["from_scratch"].model,
        "conv_stem": ((32, 1), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1)),
    },
    image_size=32,
    epochs=50,
    cutmix=0.0,
    augmentation=AUGMENTATIONS["tiny"],
)

# ViT paper, table 3: epochs, peak, decay, weight decay, dropout, clipping, images, head's bias.
# On JFT-300M the peak is that of B; L/32 has 6e-4, L/16 4e-4, H/14 3e-4.
PRETRAIN = {
    "jft300m": (7, 8e-4, "linear", 0.1, 0.0, None, 303_000_000, -10.0),
    "imagenet21k": (90, 1e-3, "linear", 0.03, 0.1, None, IMAGENET_21K, -10.0),
    "imagenet": (300, 3e-3, "cosine", 0.3, 0.1, 1.0, IMAGENET, -6.9),
}

RECIPES |= {
    f"pretrain/{name}": Recipe(
        source="ViT paper (Dosovitskiy et al. 2021), table 3; loss and head as in big_vision.",
        hardware="TPU v3 core days (table 2): L/16 on ImageNet-21k 230, on JFT 680; H/14 2,500.",
        **_PRETRAINING,
        model=size_arguments("ViT-B/16"),
        epochs=epochs,
        examples=examples,
        learning_rate=learning_rate,
        decay=decay,
        weight_decay=weight_decay,
        dropout=dropout,
        clip_norm=clip_norm,
        loss="sigmoid",
        head_bias=head_bias,
    )
    for name, (
        epochs, learning_rate, decay, weight_decay, dropout, clip_norm, examples, head_bias
    ) in PRETRAIN.items()
}  # fmt: skip
RECIPES["pretrain"] = RECIPES["pretrain/imagenet21k"]

RECIPES["masked_patches"] = Recipe(
    source="ViT paper, appendix B.1.2: self-supervision on JFT-300M, about 14 epochs, for "
    "MaskedPatchPrediction; decay and optimizer as in its section 4.1.",
    hardware="TPU v3; fine-tuned on ImageNet B/16 reaches 79.9 %, 2 % more than from scratch "
    "(section 4.6). After 100,000 steps little is gained.",
    **_PRETRAINING,
    model=size_arguments("ViT-B/16"),
    epochs=0,
    steps=1_000_000,
    examples=303_000_000,
    learning_rate=2e-4,
    weight_decay=0.1,
    clip_norm=None,
)

RECIPES["diet_cp"] = Recipe(
    source="DIET-CP (2509.06990): continued pre-training, where every image is a class, for "
    "keras_vit.training.pretrain; the crop is ours.",
    hardware="Two CPU cores: about an hour with ViT-S/16 and 1,000 images.",
    model=size_arguments("ViT-Ti/16"),
    image_size=224,
    batch_size=32,
    epochs=150,
    learning_rate=1e-4,
    label_smoothing=0.3,
    clip_norm=None,
    scaling="sqrt",
    augmentation=Augmentation(min_area=0.3),
)
RECIPES["diet"] = replace(
    RECIPES["diet_cp"],
    source="DIET (2302.10260): the same without released weights; batch and crop are ours.",
    hardware="Hours on two CPU cores; released weights are far better wherever there are some.",
    epochs=1000,
    learning_rate=1e-3,
    label_smoothing=0.8,
)
RECIPES["visreg"] = Recipe(
    source="VISReg (2606.02572): rate, batch, clipping and crops of the authors' configuration for "
    "10,000 images; epochs and warm-up as stable-pretraining compares methods on them; the changes "
    "of colors are DeiT III's. For keras_vit.training.pretrain; a batch has 4 views per image.",
    hardware="A GPU; on two CPU cores days, but for images of few pixels. Released weights are far "
    "better wherever there are some.",
    **_PRETRAINED,
    batch_size=64,
    epochs=200,
    learning_rate=1e-3,
    end=1e-6,
    warmup=0.05,
    augmentation=Augmentation(min_area=0.3, three_augment=True),
)
RECIPES["visreg_cp"] = replace(
    RECIPES["visreg"],
    source="VISReg for the last blocks of released weights; rate and epochs are those of DIET-CP.",
    epochs=RECIPES["diet_cp"].epochs,
    learning_rate=RECIPES["diet_cp"].learning_rate,
)

# ViT paper, table 4: steps, warm-up, learning rate and the learning rates to try. Warm-up and
# learning rate are those of big_vision's configs/transfer.py, where it has the task (for B/32).
FINETUNE = {
    "imagenet": (20_000, 500, 0.03, (0.003, 0.01, 0.03, 0.06)),
    "cifar100": (10_000, 500, 0.01, (0.001, 0.003, 0.01, 0.03)),
    "cifar10": (10_000, 500, 0.003, (0.001, 0.003, 0.01, 0.03)),
    "pets": (500, 100, 0.003, (0.001, 0.003, 0.01, 0.03)),
    "flowers": (500, 100, 0.003, (0.001, 0.003, 0.01, 0.03)),
    "vtab": (2_500, 200, 0.01, (0.01,)),  # this warm-up is ours
}

RECIPES |= {
    f"finetune/{name}": Recipe(
        source="ViT paper (Dosovitskiy et al. 2021), table 4 and appendix B.1.1; vit_jax configs.",
        hardware="A100, B/16: 2.2 hours for 10,000 steps.",
        model=size_arguments("ViT-B/16"),
        image_size=384,
        epochs=0,
        steps=steps,
        batch_size=512,
        accumulation=8,
        learning_rate=learning_rate,
        learning_rates=learning_rates,
        warmup=warmup,
        optimizer="sgd",
        state_dtype="bfloat16",
        weight_decay=0.0,
        label_smoothing=0.0,
    )
    for name, (steps, warmup, learning_rate, learning_rates) in FINETUNE.items()
}
RECIPES["finetune"] = RECIPES["finetune/imagenet"]

# AugReg, section 3.2, and big_vision configs/vit_i21k.py: RandAugment's magnitude (of two
# operations) and mixup. "light1" applies operations of magnitude 0, unlike "none".
AUGREG = {
    "none": (None, 0.0),
    "light1": (0, 0.0),
    "light2": (10, 0.2),
    "medium1": (15, 0.2),
    "medium2": (15, 0.5),
    "strong1": (20, 0.5),
    "strong2": (20, 0.8),
}
# The study combines them with weight decay, and dropout together with stochastic depth.
AUGREG_WEIGHT_DECAY = (0.03, 0.1)
AUGREG_DROPOUT = (0.0, 0.1)


RECIPES |= {
    f"augreg/{name}": Recipe(
        source='"How to train your ViT?" (Steiner et al. 2022); big_vision configs/vit_i21k.py.',
        hardware="TPU v3; the study trains 30 and 300 epochs of ImageNet-21k.",
        **_PRETRAINING,
        model=size_arguments("ViT-B/16"),
        epochs=300,
        examples=IMAGENET_21K,
        learning_rate=1e-3,
        weight_decay=0.1,
        state_dtype="bfloat16",
        loss="sigmoid",
        head_bias=-10.0,
        mixup=mixup,
        augmentation=Augmentation(rand_augment=None if magnitude is None else (2, magnitude)),
    )
    for name, (magnitude, mixup) in AUGREG.items()
}
RECIPES["augreg"] = RECIPES["augreg/medium1"]  # recommended for B/16

# Fine-tuning under the study's augmentation, "finetune_small/light1" and so on.
RECIPES |= {
    f"finetune_small/{name}": replace(
        RECIPES["finetune_small"],
        mixup=mixup,
        augmentation=replace(RECIPES[f"augreg/{name}"].augmentation, min_area=0.3),
    )
    for name, (_, mixup) in AUGREG.items()
}

# SAM's rho by model: "When Vision Transformers Outperform ResNets without Pre-training or Strong
# Data Augmentations" (Chen et al. 2022), appendix.
SAM_RHO = {
    "ViT-S/32": 0.05,
    "ViT-S/16": 0.1,
    "ViT-B/32": 0.15,
    "ViT-B/16": 0.2,
    "Mixer-S/32": 0.1,
    "Mixer-S/16": 0.15,
    "Mixer-S/8": 0.2,
    "Mixer-B/32": 0.35,
    "Mixer-B/16": 0.6,
}

RECIPES |= {
    f"sam/{name}": Recipe(
        source="Chen et al. 2022, appendix; Inception crops and flips alone.",
        hardware="TPU v3, 300 epochs: ViT-B/16 79.9 %, Mixer-B/16 77.4 %.",
        **_PRETRAINING,
        model=size_arguments(name) if name.startswith("ViT") else {},
        epochs=300,
        examples=IMAGENET,
        learning_rate=3e-3,
        weight_decay=0.3,
        rho=rho,
    )
    for name, rho in SAM_RHO.items()
}
RECIPES["sam"] = RECIPES["sam/ViT-B/16"]
RECIPES["gsam"] = Recipe(
    source='"Surrogate gap minimization" (Zhuang et al. 2022); big_vision '
    "configs/proj/gsam/vit_i1k_gsam_no_aug.py.",
    hardware="TPU v3, 300 epochs of ViT-B/32.",
    **_PRETRAINING,
    model={**size_arguments("ViT-B/32"), "pooling": "gap"},
    epochs=300,
    examples=IMAGENET,
    learning_rate=3e-3,
    decay="linear",
    end=3e-5,
    weight_decay=1e-3,
    decay_follows="schedule",
    loss="sigmoid",
    head_bias=-10.0,
    rho=0.6,
    rho_min=0.1,
    alpha=0.6,
)

# "Big Transfer" (Kolesnikov et al. 2020), section 3.3: the number of training images below which
# the row holds, steps, warm-up, where the rate falls to a tenth, mixup.
BIT_HYPERRULE = {
    "small": (20_000, 500, 100, (0.4, 0.6, 0.8), 0.0),
    "medium": (500_000, 10_000, 500, (0.3, 0.6, 0.9), 0.1),
    "large": (math.inf, 20_000, 500, (0.3, 0.6, 0.9), 0.1),
}


RECIPES |= {
    f"bit_hyperrule/{name}": Recipe(
        source='"Big Transfer" (Kolesnikov et al. 2020), section 3.3; big_transfer '
        "bit_hyperrule.py. Its crop is a random one of 480 from 512 pixels.",
        hardware="TPU v3; on one GPU in batches of an accumulation.",
        model={},  # not a Vision Transformer: name a BiT
        image_size=480,
        epochs=0,
        steps=steps,
        batch_size=512,
        learning_rate=3e-3,
        warmup=warmup,
        decay="stair",
        boundaries=boundaries,
        optimizer="sgd",
        weight_decay=0.0,
        label_smoothing=0.0,
        clip_norm=None,
        mixup=mixup,
        augmentation=Augmentation(crop="random"),
    )
    for name, (_, steps, warmup, boundaries, mixup) in BIT_HYPERRULE.items()
}
RECIPES["bit_hyperrule"] = RECIPES["bit_hyperrule/small"]


def bit_hyperrule(examples: int, image_size: tuple[int, int]) -> Recipe:
    """BiT's rule for fine-tuning, by the number of training images and their height and width.

    Example:

    >>> from keras_vit.training import recipes
    >>> recipe = recipes.bit_hyperrule(50_000, (32, 32))
    >>> recipe.steps, recipe.image_size, recipe.mixup
    (10000, 128, 0.1)
    """
    check_positive(examples=examples)
    name = next(name for name, row in BIT_HYPERRULE.items() if examples < row[0])
    small_images = image_size[0] * image_size[1] < 96 * 96
    return replace(RECIPES[f"bit_hyperrule/{name}"], image_size=128 if small_images else 480)


def get(name: str | Recipe) -> Recipe:
    """Return the recipe of that name, or the one that is given.

    Raises:
        TypeError: It is neither.
        ValueError: The name is unknown; the message proposes the nearest ones.

    >>> from keras_vit.training import recipes
    >>> recipes.get("digits").image_size
    8
    """
    if isinstance(name, Recipe):
        return name
    if not isinstance(name, str):
        raise TypeError(f"A recipe, or the name of one, is expected, not a {type(name).__name__}.")
    if name not in RECIPES:
        raise ValueError(f"No recipe {name!r}. {did_you_mean(name, RECIPES)}")
    return RECIPES[name]
