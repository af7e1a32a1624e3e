"""What a model looks at: attention, positions, filters, and their plots.

images ── run() ──► ForwardPass ──► attention_maps, readout_attention, pooling_attention,
                                    attention_rollout, attention_distance
images ── run_gradients() ──► ForwardGradient ──► class_attribution
model  ───────────► position_similarity, embedding_filters
each   ── plot_*() ──► a matplotlib Figure
"""

from keras_vit.inspection.attention_analysis import (
    attention_distance,
    attention_maps,
    attention_rollout,
    pooling_attention,
    readout_attention,
)
from keras_vit.inspection.attribution import class_attribution
from keras_vit.inspection.embeddings import embedding_filters, position_similarity
from keras_vit.inspection.plots import (
    plot_attention,
    plot_attention_distance,
    plot_attribution,
    plot_embedding_filters,
    plot_position_similarity,
    plot_rollout,
)

__all__ = [
    "attention_distance",
    "attention_maps",
    "attention_rollout",
    "class_attribution",
    "embedding_filters",
    "plot_attention",
    "plot_attention_distance",
    "plot_attribution",
    "plot_embedding_filters",
    "plot_position_similarity",
    "plot_rollout",
    "pooling_attention",
    "position_similarity",
    "readout_attention",
]
