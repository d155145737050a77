"""The message frame: one format for everything that master and workers tell each other."""

from seqgc.wire._codec import decode as decode
from seqgc.wire._codec import decode_invocation as decode_invocation
from seqgc.wire._codec import encode as encode
from seqgc.wire._envelope import envelope_bytes as envelope_bytes
from seqgc.wire._envelope import from_json as from_json
from seqgc.wire._envelope import to_json as to_json
from seqgc.wire._envelope import to_mapping as to_mapping
from seqgc.wire._frame import MAX_FRAME_BYTES as MAX_FRAME_BYTES
from seqgc.wire._frame import SCHEMA_VERSION as SCHEMA_VERSION
from seqgc.wire._messages import STORE_KINDS as STORE_KINDS
from seqgc.wire._messages import Answer as Answer
from seqgc.wire._messages import CancelMessage as CancelMessage
from seqgc.wire._messages import FailureMessage as FailureMessage
from seqgc.wire._messages import InvokeMessage as InvokeMessage
from seqgc.wire._messages import Json as Json
from seqgc.wire._messages import Message as Message
from seqgc.wire._messages import ReadyMessage as ReadyMessage
from seqgc.wire._messages import ReceiptMessage as ReceiptMessage
from seqgc.wire._messages import ResultMessage as ResultMessage
from seqgc.wire._messages import StoreKind as StoreKind
from seqgc.wire._messages import StoreRef as StoreRef
from seqgc.wire._messages import TaskMessage as TaskMessage
from seqgc.wire._messages import WorkloadRef as WorkloadRef
