"""What frozen features do for a folder of photographs: an index of them, and its uses.

photographs ── embed ──► FeatureIndex ──► nearest neighbors, clusters
"""

from keras_vit.curation.curation_errors import DamagedIndexError, IndexMismatchError
from keras_vit.curation.embedding import embed, index_of
from keras_vit.curation.feature_index import FeatureIndex

__all__ = ["DamagedIndexError", "FeatureIndex", "IndexMismatchError", "embed", "index_of"]
