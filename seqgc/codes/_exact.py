"""What an exact gradient code is, and the guard on every vector that it decodes with.

Theory of operation
-------------------
A batch is cut into ``k`` chunks, and the gradient is the sum of their partial gradients ``g_k``.
Worker ``i`` holds the chunks of its *support* and returns one vector, ``l_i = sum_k E[i, k] g_k``:
row ``i`` of the *encoding matrix* ``E`` (n, k) has its coefficients, and zeros elsewhere. If the
ones are a combination of the rows of those who answered, ``a @ E == 1``, then ``sum_i a_i l_i`` is
the gradient, whatever the partial gradients are (Tandon et al. 2017, section 2; their ``B`` is
``E`` here). An (n, s) code has such an ``a`` whichever ``s`` workers are missing. So every chunk
has ``s + 1`` holders or more, and some worker a load of ``(s + 1)/n`` at least (their theorem 1).

A code answers three questions, the first often and cheaply, the last seldom and at a cost:

1. Do these answers suffice (`ExactCode.can_decode`)? At every arrival; a matter of counting.
2. Who holds what (`Layout`)? When tasks are made; a matter of integers.
3. With which coefficients, and which ``a`` decodes? Once a job, in replay never; a matter of
   floats, which a cyclic code may take a second to design.

So each answer is worked out when it is first needed, and kept.

A vector that solves its equations may be useless all the same: results arrive rounded, and ``a``
multiplies their errors. What counts is ``||a|| ||E||``, which the residual ``a @ E - 1`` does not
show. The guard looks at both, and what it turns down is an error, never a gradient.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from seqgc.codes._arrays import check_mask, check_rows, check_tolerance, combine, read_only
from seqgc.codes._decoders import CoverDecoder, Decoder, SpanDecoder
from seqgc.errors import IllConditionedError, NotDecodableError, ParameterError, require_int
from seqgc.ports import BoolArray, FloatArray, IntArray, Payload, payload_format

# A decoding vector's own relative error in float64; far above rounding, far below any use of it.
_RESIDUAL_TOLERANCE = 1e-9

_KEPT_VECTORS = 1024


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """Who holds what.

    ``supports`` are each worker's chunks, in the order of its coefficients: n arrays of different
    integers ``0 <= chunk < k``. ``sizes`` (k,) say how large each chunk is, in any unit; integers
    keep loads exact.
    """

    supports: tuple[IntArray, ...]
    sizes: FloatArray | IntArray

    def __post_init__(self) -> None:
        for array in (*self.supports, self.sizes):
            read_only(array)


@dataclass(frozen=True)
class ExactCode(ABC):
    """What `GradientCode` is without approximation."""

    n: int
    s: int

    def __post_init__(self) -> None:
        n, s = check_tolerance(self.n, self.s)
        object.__setattr__(self, "n", n)  # frozen: only construction may set a field
        object.__setattr__(self, "s", s)
        self._check_parameters()

    def __getstate__(self) -> dict[str, object]:
        return {each.name: getattr(self, each.name) for each in fields(self)}  # not what they make

    @property
    def load(self) -> float:
        """Largest fraction of the batch that a worker touches."""
        return self._largest_load()

    def _largest_load(self) -> float:
        """Return `load`; a family may know it without its layout, which has n (s + 1) entries."""
        return float(self.worker_loads.max())

    @cached_property
    def worker_loads(self) -> FloatArray:
        """Fraction of the batch that each worker touches: (n,) float64, read-only."""
        supports, sizes = self._layout.supports, self._layout.sizes
        workers = np.repeat(np.arange(self.n), [len(chunks) for chunks in supports])
        held = np.bincount(workers, weights=sizes[np.concatenate(supports)], minlength=self.n)
        return read_only(held / sizes.sum())

    @cached_property
    def chunk_fractions(self) -> FloatArray:
        """Each chunk's share of the batch, (k,) float64, read-only; sums to 1."""
        return read_only(self._layout.sizes / self._layout.sizes.sum())

    @cached_property
    def encoding_matrix(self) -> FloatArray:
        """Row ``i`` holds worker ``i``'s coefficients on all chunks: (n, k) float64, read-only."""
        matrix = np.zeros((self.n, self.chunk_fractions.size))
        for worker, row in enumerate(matrix):
            row[self.support(worker)] = self.coefficients(worker)
        return read_only(matrix)

    def support(self, worker: int) -> IntArray:
        """Return the chunks that ``worker`` holds, in the order of `coefficients` and `encode`."""
        return self._layout.supports[require_int("worker", worker, least=0, most=self.n - 1)]

    def coefficients(self, worker: int) -> FloatArray:
        """Return ``worker``'s coefficients (|support|,) in the order of `support`, read-only."""
        return self._rows[require_int("worker", worker, least=0, most=self.n - 1)]

    def encode(self, worker: int, partials: FloatArray) -> FloatArray:
        """Return the result (p,) of ``worker``, ``0 <= worker < n``.

        ``partials`` (|support|, p) are the partial gradients of its chunks, in the order of
        `support`: floats, in whose dtype sums are taken (those of float16 in float32).
        """
        values = self.coefficients(worker)
        check_rows("partials", partials, len(values), "(|support|, p)")
        return combine(values, partials)

    @cached_property
    def covers(self) -> tuple[IntArray, ...]:
        """Arrays (candidates, places) of workers, if the gradient is a plain sum of results.

        The workers of one place (column) return equal results, and those of a cover's places add up
        to the gradient; decodable when some cover has an answer in every place. Empty for a code
        that solves equations.
        """
        return tuple(read_only(cover) for cover in self._make_covers())

    def place_of(self, worker: int) -> tuple[int, int] | None:
        """Return the cover and the place that ``worker`` stands in; None if there are no covers."""
        return self._places.get(require_int("worker", worker, least=0, most=self.n - 1))

    def can_decode(self, responded: BoolArray) -> bool:
        """Return whether these answers (n,) determine the gradient: their rows span the ones."""
        return self._decoder.suffices(check_mask(responded, self.n))

    def decoding_vector(self, responded: BoolArray) -> FloatArray:
        """Return ``a`` (n,), read-only: ``a @ encoding_matrix == 1``, 0 where not ``responded``.

        `NotDecodableError`: not `can_decode`; `IllConditionedError`: ``a`` solves its equations too
        badly, or float64 results would be too inexact.
        """
        key = check_mask(responded, self.n).tobytes()
        if key in self._vectors:
            return self._vectors[key]
        try:
            solved = self._decoder.solve(responded)
        except np.linalg.LinAlgError:
            raise self._ill_conditioned("the equations are singular", math.inf) from None
        if solved is None:
            raise self._not_decodable(responded)
        vector, residual = solved
        # Over the norm of the ones: the relative error that iid partial gradients suffer.
        error = residual / math.sqrt(self.chunk_fractions.size)
        if not error <= _RESIDUAL_TOLERANCE:
            what = f"the decoding vector's residual is {error:.1e}"
            raise self._ill_conditioned(what, self.amplification(vector))
        self.check_error(vector, "float64")
        if len(self._vectors) >= _KEPT_VECTORS:
            self._vectors.clear()
        self._vectors[key] = read_only(vector)
        return vector

    def amplification(self, vector: FloatArray) -> float:
        """Return by how much decoding with ``vector`` (n,) amplifies rounding errors.

        ``sqrt(sum_i a_i^2 ||E_i||^2 / k)``, for rows of equal norm ``||a|| ||E||_F / sqrt(n k)``:
        if the partial gradients are iid, ``l_i`` has variance ``||E_i||^2`` and the gradient ``k``,
        so this is the gradient's relative error over the results' (root mean squares). The sum of
        all chunks, without a code, has 1.
        """
        variance = float(np.square(vector) @ self._row_squares)
        return math.sqrt(variance / self.chunk_fractions.size)

    def predicted_error(self, vector: FloatArray, payload: Payload) -> float:
        """Return the relative error to expect of a gradient decoded with ``vector`` (n,).

        `amplification` times the relative error of rounding a result to the payload format
        (`PayloadFormat.rounding`), for iid partial gradients of normal deviates: a model. A
        gradient far smaller than its parts, which cancel, is as inexact as their plain sum.
        """
        return self.amplification(vector) * payload_format(payload).rounding

    def check_error(
        self, vector: FloatArray, payload: Payload, *, tolerance: float | None = None
    ) -> None:
        """Refuse to decode results in a payload format with ``vector`` (n,) if too inexact.

        `IllConditionedError`: `predicted_error` exceeds ``tolerance``, by default the format's own:
        1e-2 for 16 bit, 1e-4 for float32 and float64.
        """
        bound = payload_format(payload).tolerance if tolerance is None else tolerance
        if not bound > 0:
            raise ParameterError("tolerance", "must be positive", tolerance)
        error = self.predicted_error(vector, payload)
        if not error <= bound:
            what = f"{payload} results would give a relative error of {error:.1e}, over {bound:.0e}"
            raise self._ill_conditioned(what, self.amplification(vector))

    # ---- what a family supplies: a layout; the rest is general unless it says more --------------

    @abstractmethod
    def _make_layout(self) -> Layout:
        """Return who holds what; cheap."""

    def _check_parameters(self) -> None:  # noqa: B027 (most families take any)
        """Raise `ParameterError` where the family asks for more than ``0 <= s < n``."""

    def _coefficients(self, worker: int) -> FloatArray:
        """Return a valid worker's coefficients, in the order of its support: ones by default."""
        return np.ones(self.support(worker).size)

    def _make_covers(self) -> tuple[IntArray, ...]:
        """Return the `covers`, the preferred first. By default there are none: solve equations.

        One answer per place adds up to the gradient, nothing but a whole cover may, and any
        ``n - s`` workers contain one.
        """
        return ()

    def _make_decoder(self) -> Decoder:
        """Return what decides which answers suffice and finds decoding vectors."""
        if self.covers:
            return CoverDecoder(self.n, self.covers)
        return SpanDecoder(self.s, lambda: self.encoding_matrix)

    # ---- made once -------------------------------------------------------------------------------

    @cached_property
    def _layout(self) -> Layout:
        return self._make_layout()

    @cached_property
    def _rows(self) -> tuple[FloatArray, ...]:
        return tuple(read_only(self._coefficients(worker)) for worker in range(self.n))

    @cached_property
    def _vectors(self) -> dict[bytes, FloatArray]:
        return {}  # the latest survivor sets: rounds, and the groups of one job, repeat them

    @cached_property
    def _decoder(self) -> Decoder:
        return self._make_decoder()

    @cached_property
    def _places(self) -> dict[int, tuple[int, int]]:
        return {
            int(worker): (number, place)
            for number, cover in enumerate(self.covers)
            for place, candidates in enumerate(cover.T)
            for worker in candidates
        }

    @cached_property
    def _row_squares(self) -> FloatArray:
        squares: FloatArray = np.square(self.encoding_matrix).sum(axis=1)
        return squares

    def _not_decodable(self, responded: BoolArray, within: str = "") -> NotDecodableError:
        return NotDecodableError(
            f"{self!r}: the {np.count_nonzero(responded)} workers that answered do not determine"
            f" the gradient{within}; wait for more answers"
        )

    def _ill_conditioned(self, what: str, amplification: float) -> IllConditionedError:
        return IllConditionedError(
            f"{self!r}: {what} (amplification {amplification:.1e}); wait for one more answer,"
            " send wider results, or use a repetition or binary code",
            amplification=amplification,
        )
