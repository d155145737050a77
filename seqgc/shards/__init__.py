"""Defences that cut the data into shards: a free worker takes the next one and never waits."""

from seqgc.shards._defence import AspDds as AspDds
from seqgc.shards._policy import ShardPolicy as ShardPolicy
from seqgc.shards._policy import ShardPolicyState as ShardPolicyState
from seqgc.shards._service import Resume as Resume
from seqgc.shards._service import Shard as Shard
from seqgc.shards._service import ShardService as ShardService
from seqgc.shards._service import ShardState as ShardState
from seqgc.shards._stretches import Stretches as Stretches
from seqgc.shards._stretches import StretchState as StretchState
