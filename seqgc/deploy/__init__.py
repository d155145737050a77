"""Functions on AWS: what they cost, deploying them, and finding out why they cannot be used.

Deploying and diagnosing need the extra aws; prices, estimates and budgets need none.
"""

from seqgc.deploy._aws import DeployError as DeployError
from seqgc.deploy._aws import open_session as open_session
from seqgc.deploy._context import context_files as context_files
from seqgc.deploy._context import write_context as write_context
from seqgc.deploy._data_put import copy_data as copy_data
from seqgc.deploy._data_put import put_data as put_data
from seqgc.deploy._data_put import upload_data as upload_data
from seqgc.deploy._deployment import DEPLOYMENT_FILE as DEPLOYMENT_FILE
from seqgc.deploy._deployment import Deployment as Deployment
from seqgc.deploy._deployment import DeployOptions as DeployOptions
from seqgc.deploy._deployment import read_deployment as read_deployment
from seqgc.deploy._deployment import write_deployment as write_deployment
from seqgc.deploy._diagnosis import Check as Check
from seqgc.deploy._diagnosis import diagnose as diagnose
from seqgc.deploy._own_code import OwnCode as OwnCode
from seqgc.deploy._price_list import DatedPrices as DatedPrices
from seqgc.deploy._price_list import find_prices as find_prices
from seqgc.deploy._prices import INIT_LIMIT_S as INIT_LIMIT_S
from seqgc.deploy._prices import PRICES_FILE as PRICES_FILE
from seqgc.deploy._prices import START_S as START_S
from seqgc.deploy._prices import Architecture as Architecture
from seqgc.deploy._prices import Bill as Bill
from seqgc.deploy._prices import FunctionSetup as FunctionSetup
from seqgc.deploy._prices import Prices as Prices
from seqgc.deploy._prices import Traffic as Traffic
from seqgc.deploy._prices import Usage as Usage
from seqgc.deploy._prices import prices_date as prices_date
from seqgc.deploy._prices import read_prices as read_prices
from seqgc.deploy._spending import Budget as Budget
from seqgc.deploy._spending import Estimate as Estimate
from seqgc.deploy._spending import PlannedUse as PlannedUse
from seqgc.deploy._spending import PriceModel as PriceModel
from seqgc.deploy._spending import estimate_plan as estimate_plan
from seqgc.deploy._spending import estimate_run as estimate_run
from seqgc.deploy._stack import deploy as deploy
from seqgc.deploy._stack import deploy_commands as deploy_commands
from seqgc.deploy._stay_budget import StayBudget as StayBudget
from seqgc.deploy._teardown import Part as Part
from seqgc.deploy._teardown import Teardown as Teardown
from seqgc.deploy._teardown import plan_teardown as plan_teardown
from seqgc.deploy._teardown import tear_down as tear_down
from seqgc.deploy._versions import pin_version as pin_version
