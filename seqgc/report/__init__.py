"""Reports about a delay profile, runs, or a comparison, each a single HTML file."""

from seqgc.report._comparison import comparison_page as comparison_page
from seqgc.report._drawing import COLOURS as COLOURS
from seqgc.report._explanation import explanation_page as explanation_page
from seqgc.report._page import Page as Page
from seqgc.report._profile import SEARCH_S as SEARCH_S
from seqgc.report._profile import profile_page as profile_page
from seqgc.report._profile import search_section as search_section
from seqgc.report._runs import run_page as run_page
from seqgc.report._runs import watch as watch
