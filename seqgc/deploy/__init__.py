"""Deploying the worker functions, and finding out why they cannot be used. Needs the extra aws."""

from seqgc.deploy._aws import DeployError as DeployError
from seqgc.deploy._aws import open_session as open_session
from seqgc.deploy._check import Check as Check
from seqgc.deploy._deploy_options import DeployOptions as DeployOptions
from seqgc.deploy._deployment import DEPLOYMENT_FILE as DEPLOYMENT_FILE
from seqgc.deploy._deployment import Deployment as Deployment
from seqgc.deploy._deployment import read_deployment as read_deployment
from seqgc.deploy._deployment import write_deployment as write_deployment
from seqgc.deploy._diagnosis import diagnose as diagnose
from seqgc.deploy._sam import deploy_commands as deploy_commands
from seqgc.deploy._stack import deploy as deploy
