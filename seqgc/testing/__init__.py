"""What those who extend seqgc test their own parts with."""

from seqgc.testing._codes import check_code as check_code
from seqgc.testing._schemes import check_scheme as check_scheme
