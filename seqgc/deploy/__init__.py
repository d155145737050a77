"""Cloud functions on AWS Lambda: their deployment, their data, their removal and a diagnosis.

This room needs the extra ``aws``.
"""

from seqgc.deploy._aws import DeployError as DeployError
from seqgc.deploy._aws import open_session as open_session
from seqgc.deploy._context import OwnCode as OwnCode
from seqgc.deploy._context import context_files as context_files
from seqgc.deploy._context import write_context as write_context
from seqgc.deploy._data import copy_data as copy_data
from seqgc.deploy._data import put_data as put_data
from seqgc.deploy._data import upload_data as upload_data
from seqgc.deploy._deployment import DEPLOYMENT_FILE as DEPLOYMENT_FILE
from seqgc.deploy._deployment import Deployment as Deployment
from seqgc.deploy._deployment import DeployOptions as DeployOptions
from seqgc.deploy._deployment import pin_version as pin_version
from seqgc.deploy._deployment import read_deployment as read_deployment
from seqgc.deploy._deployment import write_deployment as write_deployment
from seqgc.deploy._diagnosis import Check as Check
from seqgc.deploy._diagnosis import diagnose as diagnose
from seqgc.deploy._network import NetworkChoice as NetworkChoice
from seqgc.deploy._network import RunNeeds as RunNeeds
from seqgc.deploy._network import choose_network as choose_network
from seqgc.deploy._results import upload_run as upload_run
from seqgc.deploy._stack import deploy as deploy
from seqgc.deploy._stack import deploy_commands as deploy_commands
from seqgc.deploy._teardown import DeployedPart as DeployedPart
from seqgc.deploy._teardown import Teardown as Teardown
from seqgc.deploy._teardown import plan_teardown as plan_teardown
from seqgc.deploy._teardown import tear_down as tear_down
