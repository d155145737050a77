"""Reports: one self-contained page of HTML for a delay profile, for a run, or for several runs."""

from seqgc.report._colours import COLOURS as COLOURS
from seqgc.report._page import Page as Page
from seqgc.report._profile import profile_page as profile_page
from seqgc.report._runs import run_page as run_page
from seqgc.report._search import SEARCH_S as SEARCH_S
from seqgc.report._watch import watch as watch
