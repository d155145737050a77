"""One torch thread, as in the workers."""

from tests.training.conftest import one_torch_thread as one_torch_thread
