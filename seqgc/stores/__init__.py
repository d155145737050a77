"""Where workers find the weights: immutable versions, each with its digest."""

from seqgc.stores.directory import DirectoryStore as DirectoryStore
from seqgc.stores.memory import MemoryStore as MemoryStore
