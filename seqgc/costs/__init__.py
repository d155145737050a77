"""Costs of cloud functions on AWS: prices, estimates before a run, budgets during it, and bills."""

from seqgc.costs.meter import Budget as Budget
from seqgc.costs.meter import Estimate as Estimate
from seqgc.costs.meter import Meter as Meter
from seqgc.costs.meter import PlannedUse as PlannedUse
from seqgc.costs.meter import estimate_plan as estimate_plan
from seqgc.costs.meter import estimate_run as estimate_run
from seqgc.costs.prices import INIT_LIMIT_S as INIT_LIMIT_S
from seqgc.costs.prices import PRICES_FILE as PRICES_FILE
from seqgc.costs.prices import RESTORE_S as RESTORE_S
from seqgc.costs.prices import START_S as START_S
from seqgc.costs.prices import Architecture as Architecture
from seqgc.costs.prices import Bill as Bill
from seqgc.costs.prices import DatedPrices as DatedPrices
from seqgc.costs.prices import FunctionSetup as FunctionSetup
from seqgc.costs.prices import Prices as Prices
from seqgc.costs.prices import Traffic as Traffic
from seqgc.costs.prices import Usage as Usage
from seqgc.costs.prices import find_prices as find_prices
from seqgc.costs.prices import prices_date as prices_date
from seqgc.costs.prices import read_prices as read_prices
from seqgc.costs.services import ComputeService as ComputeService
from seqgc.costs.services import ServiceCost as ServiceCost
from seqgc.costs.services import compare_services as compare_services
