"""What frozen features do for a folder of photographs: an index of them, and its uses.

photographs ── embed ──► FeatureIndex ──┬──► find_similar       photographs like another one
                                        ├──► nearest_neighbors  of each row, exactly
                                        ├──► find_clusters      groups of similar ones
                                        ├──► judge_features     what they know of labels
                                        ├──► find_label_errors  labels that are probably wrong
                                        ├──► next_to_label      which images to label next
                        ├──► outlier_distances  from all others
                        measure_photos ─┴──► find_duplicates    photographs that stand twice
"""

from keras_vit.curation.choice import (
    FeatureComparison,
    FeatureScores,
    RidgeAnswers,
    compare_features,
    judge_features,
    neighbors_answers,
    ridge_answers,
)
from keras_vit.curation.clusters import Clusters, find_clusters
from keras_vit.curation.curation_errors import DamagedIndexError, IndexMismatchError
from keras_vit.curation.duplicates import Duplicates, find_duplicates
from keras_vit.curation.embedding import embed, index_of
from keras_vit.curation.feature_index import FeatureIndex
from keras_vit.curation.image_quality import (
    ImageMeasures,
    PhotoMeasures,
    find_outliers,
    measure_image,
    measure_photos,
    outlier_distances,
)
from keras_vit.curation.label_errors import (
    LabelErrors,
    confident_errors,
    find_label_errors,
    label_quality,
    neighbor_probabilities,
    probe_probabilities,
)
from keras_vit.curation.labelling import ToLabel, next_to_label
from keras_vit.curation.mask_errors import MaskErrors, find_mask_errors
from keras_vit.curation.nearest import Nearest, nearest_neighbors
from keras_vit.curation.perceptual_hash import perceptual_hash
from keras_vit.curation.photo_search import SearchResult, find_similar

__all__ = [
    "Clusters",
    "DamagedIndexError",
    "Duplicates",
    "FeatureComparison",
    "FeatureIndex",
    "FeatureScores",
    "ImageMeasures",
    "IndexMismatchError",
    "LabelErrors",
    "MaskErrors",
    "Nearest",
    "PhotoMeasures",
    "RidgeAnswers",
    "SearchResult",
    "ToLabel",
    "compare_features",
    "confident_errors",
    "embed",
    "find_clusters",
    "find_duplicates",
    "find_label_errors",
    "find_mask_errors",
    "find_outliers",
    "find_similar",
    "index_of",
    "judge_features",
    "label_quality",
    "measure_image",
    "measure_photos",
    "nearest_neighbors",
    "neighbor_probabilities",
    "neighbors_answers",
    "next_to_label",
    "outlier_distances",
    "perceptual_hash",
    "probe_probabilities",
    "ridge_answers",
]
