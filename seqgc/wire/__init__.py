"""The wire format of all messages between a master and its workers.

A message is sent as a frame, which is one string of bytes. All integers are little-endian::

    offset  bytes
    0       4      magic "SGCF"
    4       2      schema version, 10
    6       2      flags: 0, or 1 if there is no digest
    8       16     xxh3-128 of everything that follows; zeros if there is no digest
    24      4      header length h, including padding
    28      8      body length b
    36      h      header: JSON, padded with spaces so that the body starts at a multiple of 16
    36+h    b      body: the numbers of arrays, one array after the other, without gaps

The header is JSON that names the run and contains the message, for example ``{"run": "r1",
"message": {"type": "cancel", "round": 3, "worker": 1}}``. Only the numbers of arrays are in the
body. The header describes the body: the number of data points, and the length and format of each
result. The body does not describe itself, so an array cannot contradict its description. Nothing is
pickled.

A receiver trusts nothing in a frame. It compares lengths with the limits and with the data before
it allocates memory, and counts the values of a header before it creates objects. The digest detects
bytes that changed on the way; it is not a signature. While msgspec parses the header, it checks
types and ranges and rejects unknown fields. The arrays in the header must describe the whole body,
and all numbers must be finite. If a check fails, the frame is dropped with a `WireError` of one
line, and the master decides whether to send the task again.

Frames between the master and its own child processes have no digest (``sealed=False``), because a
pipe does not change bytes. A receiver rejects a frame with a digest where it expects none, and a
frame without a digest where it expects one.

Weights and stored answers are not protected by a frame, and other users may be able to write where
they are stored. The reference to such an object therefore contains its SHA-256.

`encode` and `decode` convert messages to frames and back. If a service carries only JSON, `to_json`
and `from_json` convert a frame to a JSON envelope with base64, and back.
"""

from seqgc.wire._codec import MESSAGE_LIMIT_BYTES as MESSAGE_LIMIT_BYTES
from seqgc.wire._codec import decode as decode
from seqgc.wire._codec import decode_invocation as decode_invocation
from seqgc.wire._codec import encode as encode
from seqgc.wire._codec import encode_pieces as encode_pieces
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
