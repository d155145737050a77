"""The wire format of all messages between a master and its workers.

A message is a frame: one string of bytes, whatever carries it. All integers are little-endian::

    offset  bytes
    0       4      magic "SGCF"
    4       2      schema version, 8
    6       2      flags: 0, or 1 if there is no digest
    8       16     xxh3-128 of everything that follows; zeros if there is no digest
    24      4      header length h, including padding
    28      8      body length b
    36      h      header: JSON, padded with spaces so that the body starts at a multiple of 16
    36+h    b      body: the numbers of arrays, one array after the other, without gaps

The header names the run and holds the message: ``{"run": "r1", "message": {"type": "cancel",
"round": 3, "worker": 1}}``. It holds everything but the numbers, and describes the body: the number
of points, the results that it contains, and the format of each. The body does not describe itself,
so an array cannot contradict its description. Nothing is pickled.

A receiver trusts nothing in a frame. It compares lengths with the limits and with the data before
it allocates memory, and counts the values of a header before it makes objects of them. The digest
finds bytes that changed on the way; it is not a signature. msgspec checks the header against
structs while it parses: unknown fields, types and ranges. The header must use up the body exactly,
and all numbers must be finite. If a check fails, the frame is dropped with a `WireError` of one
line; the master decides whether to ask again. Between the master and its own child processes a
digest would find nothing, so frames on that pipe have none (``sealed=False``). Each side insists on
the kind of frame that it expects.

Weights and stored answers are different: they lie where others can write. The reference to such an
object holds its SHA-256.

`encode` and `decode` convert messages to frames and back. If a service carries only JSON, a frame
travels as base64 in an envelope: `to_json`, `from_json`.
"""

from seqgc.wire._codec import MESSAGE_LIMIT_BYTES as MESSAGE_LIMIT_BYTES
from seqgc.wire._codec import decode as decode
from seqgc.wire._codec import decode_invocation as decode_invocation
from seqgc.wire._codec import encode as encode
from seqgc.wire._codec import envelope_bytes as envelope_bytes
from seqgc.wire._codec import from_json as from_json
from seqgc.wire._codec import to_json as to_json
from seqgc.wire._codec import to_mapping as to_mapping
from seqgc.wire._frame import MAX_FRAME_BYTES as MAX_FRAME_BYTES
from seqgc.wire._frame import SCHEMA_VERSION as SCHEMA_VERSION
from seqgc.wire._message_types import STORE_KINDS as STORE_KINDS
from seqgc.wire._message_types import AnswerMessage as AnswerMessage
from seqgc.wire._message_types import CancelMessage as CancelMessage
from seqgc.wire._message_types import FailureMessage as FailureMessage
from seqgc.wire._message_types import InvokeMessage as InvokeMessage
from seqgc.wire._message_types import Json as Json
from seqgc.wire._message_types import LeaveMessage as LeaveMessage
from seqgc.wire._message_types import Message as Message
from seqgc.wire._message_types import ReadyMessage as ReadyMessage
from seqgc.wire._message_types import ReceiptMessage as ReceiptMessage
from seqgc.wire._message_types import ResultMessage as ResultMessage
from seqgc.wire._message_types import StayMessage as StayMessage
from seqgc.wire._message_types import StoreKind as StoreKind
from seqgc.wire._message_types import StoreRef as StoreRef
from seqgc.wire._message_types import Subject as Subject
from seqgc.wire._message_types import TaskMessage as TaskMessage
from seqgc.wire._message_types import WorkloadRef as WorkloadRef
