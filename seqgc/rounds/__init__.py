"""When may a round close? The gate decides it; policies drive schedules with it."""

from seqgc.rounds._alarms import Alarms as Alarms
from seqgc.rounds._answers import Answers as Answers
from seqgc.rounds._answers import OnRecord as OnRecord
from seqgc.rounds._dealing import DealingPolicy as DealingPolicy
from seqgc.rounds._doubts import Doubts as Doubts
from seqgc.rounds._foreign import require_worker as require_worker
from seqgc.rounds._gate import RoundGate as RoundGate
from seqgc.rounds._part_tasks import part_task as part_task
from seqgc.rounds._part_tasks import part_update as part_update
from seqgc.rounds._policy import RoundPolicy as RoundPolicy
from seqgc.rounds._policy_defence import PolicyDefence as PolicyDefence
from seqgc.rounds._policy_defence import ResumablePolicy as ResumablePolicy
from seqgc.rounds._policy_defence import RunPolicy as RunPolicy
from seqgc.rounds._policy_defence import policy_of as policy_of
from seqgc.rounds._records import Records as Records
from seqgc.rounds._retries import Retries as Retries
from seqgc.rounds._rule import Adaptation as Adaptation
from seqgc.rounds._rule import ClosingRule as ClosingRule
from seqgc.rounds._rule import Setting as Setting
from seqgc.rounds._rule import WaitOut as WaitOut
from seqgc.rounds._rule import require_models as require_models
from seqgc.rounds._switching import Decision as Decision
from seqgc.rounds._switching import Director as Director
from seqgc.rounds._switching import Segment as Segment
from seqgc.rounds._switching import SwitchingPolicy as SwitchingPolicy
