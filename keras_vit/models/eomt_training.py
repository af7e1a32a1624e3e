"""Training of an EoMT head: what a step computes, and which queries it holds to their masks.

    images ──► blocks ──► queries ──► [ prediction ──► mask of attention ──► block ] ... prediction
                                            └─────────────► QueryLoss ◄──────────────────────┘

Mask annealing (Kerssies et al. 2025, section 3.3): at first a query attends only to the patches
inside its mask, in the end to all, as in prediction; block after block is freed, query by query.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.models.image_model import ImageModel
from keras_vit.ops import random_rows, without_gradient
from keras_vit.tasks.query_losses import QueryLoss, query_loss

POWER = 0.9  # of the fall from 1 to 0, as that of the learning rate


def masked_share(step: Any, steps: Any, blocks: int) -> Any:
    """Return the probability that a query is held to its mask in each block, `(blocks,)`.

    Of `blocks + 2` phases of equal length, all queries of all blocks are masked in the first, none
    in the last; between them, one block after the other is freed, from the first on.

    >>> shares = [masked_share(float(step), 60, 2) for step in (0, 15, 21, 30, 45)]
    >>> [[round(float(share), 1) for share in row] for row in shares]
    [[1.0, 1.0], [1.0, 1.0], [0.6, 1.0], [0.0, 1.0], [0.0, 0.0]]
    """
    phase = step * ((blocks + 2) / steps) - 1
    progress = ops.clip(phase - ops.arange(blocks, dtype="float32"), 0.0, 1.0)
    return (1 - progress) ** POWER


def _uniform(shape: Any, seed: Any) -> Any:
    return keras.random.uniform(shape, dtype="float32", seed=seed)


class QueryTrainedModel(ImageModel):
    """An `ImageModel` whose EoMT head, compiled with a `QueryLoss`, learns from all predictions.

    Its call with `training=True` then returns a dictionary: the predictions in front of each block
    and the last, and the `logits` that the last one means, for the metrics. `evaluate`, `predict`
    and every file have the logits alone.
    """

    # Hidden from Keras's tracking, as its layers are the model's.
    _query_graph: keras.Model | None = None

    def _features_of_queries(self, is_masked: Sequence[Any]) -> dict[str, Any]:
        """Return the features of the last blocks where these queries are held to their masks."""
        raise NotImplementedError

    def _compile(self, *args: Any, **options: Any) -> dict[str, Any]:
        arguments = super()._compile(*args, **options)
        loss = query_loss(self.loss, self.head_kind)
        self.__dict__["_query_graph"] = None if loss is None else self._graph_of_queries(loss)
        if loss is None:
            return arguments
        if not hasattr(self, "annealing_seed"):
            # Variables of the model: a step moves them, and a checkpoint of a run has them.
            self.annealing_seed = keras.random.SeedGenerator()
            self.point_seed = keras.random.SeedGenerator()
        return arguments

    def _graph_of_queries(self, loss: QueryLoss) -> keras.Model:
        head, depth = self._config.map_head, self._config.depth
        masks = [
            keras.Input((head.queries,), dtype="bool", name=f"is_masked_{i}")
            for i in range(0 if head.masked or loss.steps is None else head.blocks)
        ]
        features = self._features_of_queries(masks)
        places = [f"_{i}" for i in range(depth) if f"mask_logits_{i}" in features]
        outputs = [
            [features[f"{kind}_logits{place}"] for place in (*places, "")]
            for kind in ("mask", "class")
        ]
        return keras.Model([*self.inputs, *masks], outputs)

    def _before_fit(self) -> None:
        super()._before_fit()
        if self._query_graph is not None:
            # Draws count steps, of which a file of Keras has those of the optimizer alone.
            optimizer: Any = getattr(self.optimizer, "inner_optimizer", self.optimizer)
            steps = int(optimizer.iterations) * (optimizer.gradient_accumulation_steps or 1)
            state = ops.convert_to_numpy(self.annealing_seed.state)
            self.annealing_seed.state.assign(np.array([state[0], steps], state.dtype))

    def _forward(self, inputs: Any, training: Any = None, mask: Any = None, **options: Any) -> Any:
        if not training or self._query_graph is None:
            return super()._forward(inputs, training, mask, **options)
        images = ops.cast(inputs, "float32")  # as `keras.Input` does
        anneals = len(self._query_graph.inputs) > 1
        which = self._masked_queries(ops.shape(images)[0]) if anneals else []
        masks, classes = self._query_graph([images, *which], training=True)
        return {
            "logits": without_gradient(self._semantic, masks[-1], classes[-1]),
            "mask_logits": masks,
            "class_logits": classes,
        }

    def _query_loss(self) -> QueryLoss:
        loss = query_loss(self.loss, self.head_kind)
        assert loss is not None
        return loss

    def _semantic(self, masks: Any, classes: Any) -> Any:
        return self.get_layer("logits")(self.get_layer("head_resize")(masks), classes)

    def _masked_queries(self, rows: Any) -> list[Any]:
        """Draw which queries each block holds to their masks, bool `(rows, queries)` each."""
        head, seed = self._config.map_head, self.annealing_seed
        step = ops.cast(ops.convert_to_tensor(seed.state)[1], "float32")  # one draw per step
        share = masked_share(step, self._query_loss().steps, head.blocks)
        shape = (head.blocks, head.queries)
        uniform = random_rows(lambda count: _uniform((count, *shape), seed), rows)
        return [uniform[:, i] < share[i] for i in range(head.blocks)]

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """Return the compiled loss; in training with a `QueryLoss` that of all predictions."""
        if not isinstance(y_pred, dict):
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        if sample_weight is not None:
            raise ValueError(
                f"{self.name} learns masks that are counted over the batch, and sample_weight is "
                "of images: leave it out, or compile with another loss, such as "
                "keras_vit.tasks.get('segmentation', ...).loss()."
            )
        predictions = zip(y_pred["mask_logits"], y_pred["class_logits"], strict=True)
        loss, draw = self._query_loss(), partial(_uniform, seed=self.point_seed)
        total = sum(loss.of_queries(y, *prediction, draw) for prediction in predictions)
        return total + sum(map(ops.sum, self.losses))

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return the compiled metrics of the logits."""
        logits = y_pred["logits"] if isinstance(y_pred, dict) else y_pred
        return super().compute_metrics(x, y, logits, sample_weight)
