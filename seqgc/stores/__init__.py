"""Stores of weights, results and data sets. Stored versions are immutable and have a digest."""

from seqgc.stores._open import INLINE_OUTSIDE_BYTES as INLINE_OUTSIDE_BYTES
from seqgc.stores._open import INLINE_ROUND_BYTES as INLINE_ROUND_BYTES
from seqgc.stores._open import StoreChoice as StoreChoice
from seqgc.stores._open import choose_store as choose_store
from seqgc.stores._open import open_store as open_store
from seqgc.stores._open import unique_name as unique_name
from seqgc.stores.data_sets import DATA_FILE as DATA_FILE
from seqgc.stores.data_sets import StoredArray as StoredArray
from seqgc.stores.data_sets import StoredData as StoredData
from seqgc.stores.data_sets import data_places as data_places
from seqgc.stores.data_sets import find_data as find_data
from seqgc.stores.data_sets import is_number as is_number
from seqgc.stores.data_sets import read_head as read_head
from seqgc.stores.data_sets import require_data_name as require_data_name
from seqgc.stores.directory import DirectoryStore as DirectoryStore
from seqgc.stores.memory import InlineStore as InlineStore
from seqgc.stores.memory import MemoryStore as MemoryStore
from seqgc.stores.retention import RetiringStore as RetiringStore
from seqgc.stores.s3 import S3Store as S3Store
from seqgc.stores.s3 import import_s3 as import_s3
from seqgc.stores.s3 import open_s3 as open_s3
