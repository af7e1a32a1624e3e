"""What frozen features do for a folder of photographs: an index of them, and its uses.

photographs ── embed ──► FeatureIndex ──┬──► find_similar       photographs like another one
                                        ├──► nearest_neighbors  of each row, exactly
                                        ├──► find_clusters      groups of similar ones
                                        └──► judge_features     what they know of labels
"""

from keras_vit.curation.choice import (
    FeatureScores,
    RidgeAnswers,
    judge_features,
    neighbors_answers,
    ridge_answers,
)
from keras_vit.curation.clusters import Clusters, find_clusters
from keras_vit.curation.curation_errors import DamagedIndexError, IndexMismatchError
from keras_vit.curation.embedding import embed, index_of
from keras_vit.curation.feature_index import FeatureIndex
from keras_vit.curation.nearest import Nearest, nearest_neighbors
from keras_vit.curation.photo_search import SearchResult, find_similar

__all__ = [
    "Clusters",
    "DamagedIndexError",
    "FeatureIndex",
    "FeatureScores",
    "IndexMismatchError",
    "Nearest",
    "RidgeAnswers",
    "SearchResult",
    "embed",
    "find_clusters",
    "find_similar",
    "index_of",
    "judge_features",
    "nearest_neighbors",
    "neighbors_answers",
    "ridge_answers",
]
