"""What a model looks at: attention, positions and filters, their plots, and a page of them all.

images ── read() ──► attention of every layer ──► attention_maps, readout_attention,
                                                  attention_rollout, attention_distance
model  ────────────► position_similarity, embedding_filters
each   ── plot_*() ──► a matplotlib Figure;   photographs ── inspect_files() ──► index.html
"""

from keras_vit.inspection.attention import attention_maps, pooling_attention, readout_attention
from keras_vit.inspection.distance import attention_distance
from keras_vit.inspection.filters import embedding_filters
from keras_vit.inspection.plots import (
    plot_attention,
    plot_attention_distance,
    plot_embedding_filters,
    plot_position_similarity,
    plot_rollout,
)
from keras_vit.inspection.positions import position_similarity
from keras_vit.inspection.report import inspect_files
from keras_vit.inspection.rollout import attention_rollout

__all__ = [
    "attention_distance",
    "attention_maps",
    "attention_rollout",
    "embedding_filters",
    "inspect_files",
    "plot_attention",
    "plot_attention_distance",
    "plot_embedding_filters",
    "plot_position_similarity",
    "plot_rollout",
    "pooling_attention",
    "position_similarity",
    "readout_attention",
]
