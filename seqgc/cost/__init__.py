"""What a run costs: metered quantities, prices from one dated file, a budget."""

from seqgc.cost._budget import Budget as Budget
from seqgc.cost._budget import PriceModel as PriceModel
from seqgc.cost._estimate import Estimate as Estimate
from seqgc.cost._estimate import PlannedUse as PlannedUse
from seqgc.cost._estimate import estimate_plan as estimate_plan
from seqgc.cost._estimate import estimate_run as estimate_run
from seqgc.cost._prices import PRICES_FILE as PRICES_FILE
from seqgc.cost._prices import Architecture as Architecture
from seqgc.cost._prices import Bill as Bill
from seqgc.cost._prices import Prices as Prices
from seqgc.cost._prices import prices_date as prices_date
from seqgc.cost._prices import read_prices as read_prices
from seqgc.cost._usage import INIT_LIMIT_S as INIT_LIMIT_S
from seqgc.cost._usage import START_S as START_S
from seqgc.cost._usage import FunctionSetup as FunctionSetup
from seqgc.cost._usage import Traffic as Traffic
from seqgc.cost._usage import Usage as Usage
