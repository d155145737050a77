"""The import of traces of other tools: rows of tasks become a delay profile."""

from seqgc.profiles.traces._formats import FORMATS as FORMATS
from seqgc.profiles.traces._importing import ImportedTrace as ImportedTrace
from seqgc.profiles.traces._importing import import_trace as import_trace
from seqgc.profiles.traces._importing import read_or_import as read_or_import
