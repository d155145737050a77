"""The command line: one thin file per verb."""

from seqgc.cli._main import main as main
