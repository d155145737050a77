"""The message frame: one format for everything that master and workers tell each other."""

from seqgc.wire._frame import MAX_FRAME_BYTES as MAX_FRAME_BYTES
from seqgc.wire._frame import SCHEMA_VERSION as SCHEMA_VERSION
from seqgc.wire._messages import CancelMessage as CancelMessage
from seqgc.wire._messages import FailureMessage as FailureMessage
from seqgc.wire._messages import Message as Message
from seqgc.wire._messages import ReadyMessage as ReadyMessage
from seqgc.wire._messages import ResultMessage as ResultMessage
from seqgc.wire._messages import TaskMessage as TaskMessage
from seqgc.wire._messages import decode as decode
from seqgc.wire._messages import encode as encode
