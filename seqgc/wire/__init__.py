"""The wire: one format for everything that master and workers say to each other.

A message is a frame, one string of bytes whatever carries it. All integers are little-endian::

    offset  bytes
    0       4      magic "SGCF"
    4       2      schema version, 7
    6       2      flags: 0, or 1 where there is no digest
    8       16     xxh3-128 of all that follows; zeros where there is no digest
    24      4      header length h, padding included
    28      8      body length b
    36      h      header: JSON, padded with spaces so that the body starts at a multiple of 16
    36+h    b      body: the numbers of arrays, one array after the other, without gaps

The header names the run and holds the message: ``{"run": "r1", "message": {"type": "cancel",
"round": 3, "worker": 1}}``. It says everything but numbers, so it also says what the body is: how
many points, which results in which format. Nothing in the body describes itself, no array can
contradict its description, and there is no pickle anywhere.

Whoever reads a frame trusts nothing in it. Lengths are compared with what may be and with what is
there before anything is allocated, the values of a header are counted before any becomes an object;
the digest, which finds bytes changed on the way or at rest, is no signature; msgspec then checks
the header against structs while it parses, unknown fields, types and ranges alike; counts must use
up the body exactly; numbers must be finite. Whatever fails is a `WireError` of one line, and the
frame is dropped: a retry is the master's business, never the wire's. Between the master and its own
child processes a digest would find nothing, so frames on that pipe have none (``sealed=False``),
and each side insists on what it expects.

Weights and stored answers are a different matter: they lie where others can write, and a reference
made earlier says which bytes they must be. That takes SHA-256, in the references themselves.

`encode` and `decode` are the way in and out. Where only JSON passes, a frame travels as base64 in
an envelope: `to_json`, `from_json`.
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
