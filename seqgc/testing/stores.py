"""`StoreContract` and `BlobStoreContract`: tests of the contracts of stores."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest

from seqgc.errors import ParameterError, StoreError
from seqgc.ports import BlobStore, FloatArray, WeightStore

__all__ = ["BlobStoreContract", "StoreContract"]

_DATA = bytes(range(256)) * 10
_NAMES = ("", ".", "..", "../x", "a/b", "/etc", "a\0b", "a b", "-rf", ".hidden", "é", "a\n", "a@1")
_KEYS = ("", "..", "../x", "a/b", "/a", ".x", "-x", "a b", "é", "x" * 201)
_REFUSED: dict[str, tuple[object, ...]] = {
    "model": (*_NAMES, "x" * 101),  # such a name could lead out of the store
    "version": (-1, 1.0, True, "0"),
    "params": (np.ones((2, 2)), np.ones(2, int), np.array([None])),
}


class StoreContract:
    """Tests of the contract of `seqgc.ports.WeightStore`.

    Subclass it in a test file, and define the fixture ``store``, which returns an empty store. If
    the store can also store bytes under a key, use `BlobStoreContract`, which includes these tests.

    Examples
    --------
    >>> from seqgc.stores import InlineStore
    >>> class TestInlineStore(StoreContract):
    ...     @pytest.fixture
    ...     def store(self):
    ...         return InlineStore()
    """

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    @pytest.mark.parametrize("size", [0, 1, 1000])
    def test_weights_come_back_bit_for_bit_and_read_only(
        self, store: WeightStore, dtype: str, size: int
    ) -> None:
        params = np.linspace(-1, 1, size).astype(dtype)
        ref = store.publish("cnn", 3, params)
        fetched = store.fetch(ref)
        assert (fetched.dtype, fetched.tobytes()) == (params.dtype, params.tobytes())
        assert not fetched.flags.writeable
        assert (ref.model, ref.version, ref.dtype, ref.size) == ("cnn", 3, dtype, size)

    def test_the_same_in_any_byte_order_has_one_reference(self, store: WeightStore) -> None:
        little, big = (np.arange(5.0).astype(order) for order in ("<f8", ">f8"))
        ref = store.publish("a", 0, little)
        assert store.publish("a", 0, little.copy()) == store.publish("a", 0, big) == ref
        assert store.fetch(ref).dtype.isnative

    def test_the_callers_array_may_change_afterwards(self, store: WeightStore) -> None:
        params = np.ones(3)
        ref = store.publish("cnn", 0, params)
        params[:] = 7
        np.testing.assert_array_equal(store.fetch(ref), np.ones(3))

    @pytest.mark.parametrize("other", [np.zeros(3), np.ones(4), np.ones(3, np.float32)])
    def test_a_version_never_changes(self, store: WeightStore, other: FloatArray) -> None:
        ref = store.publish("cnn", 0, np.ones(3))
        with pytest.raises(ParameterError, match="`version`"):
            store.publish("cnn", 0, other)
        np.testing.assert_array_equal(store.fetch(ref), np.ones(3))

    def test_models_and_versions_do_not_mix(self, store: WeightStore) -> None:
        refs = {
            (place, version): store.publish(model, version, np.array([place, version], float))
            for place, model in enumerate(["a", "b", "a1", "a.1"])
            for version in (0, 1, 10)
        }
        for content, ref in refs.items():
            np.testing.assert_array_equal(store.fetch(ref), content)

    def test_discarded_weights_are_gone_and_the_others_are_not(self, store: WeightStore) -> None:
        old, new = (store.publish("cnn", version, np.full(2, float(version))) for version in (0, 1))
        store.discard(old)
        store.discard(old)
        with pytest.raises(StoreError, match="cnn"):
            store.fetch(old)
        np.testing.assert_array_equal(store.fetch(new), [1, 1])

    @pytest.mark.parametrize("change", [{"digest": "0" * 64}, {"size": 2}, {"dtype": "float32"}])
    def test_a_reference_to_other_content_is_refused(
        self, store: WeightStore, change: dict[str, str]
    ) -> None:
        ref = store.publish("cnn", 0, np.ones(3))
        with pytest.raises(StoreError, match="cnn"):
            store.fetch(dataclasses.replace(ref, **change))  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("argument", "value"), [(a, value) for a, values in _REFUSED.items() for value in values]
    )
    def test_what_no_store_takes_is_refused_by_its_name(
        self, store: WeightStore, argument: str, value: object
    ) -> None:
        arguments = {"model": "cnn", "version": 0, "params": np.ones(1)} | {argument: value}
        with pytest.raises(ParameterError, match=f"`{argument}`"):
            store.publish(**arguments)  # type: ignore[arg-type]


class BlobStoreContract(StoreContract):
    """Tests of the contract of `seqgc.ports.BlobStore`: `StoreContract`, and bytes stored by key.

    Examples
    --------
    >>> from seqgc.stores import MemoryStore
    >>> class TestMemoryStore(BlobStoreContract):
    ...     @pytest.fixture
    ...     def store(self):
    ...         return MemoryStore()
    """

    @pytest.mark.parametrize("data", [b"", b"x", _DATA])
    def test_bytes_come_back(self, store: BlobStore, data: bytes) -> None:
        store.put("result-3-1-0", data)
        assert _get(store, "result-3-1-0", data) == data

    def test_what_was_there_is_replaced(self, store: BlobStore) -> None:
        store.put("k", b"old")
        store.put("k", _DATA)
        assert _get(store, "k", _DATA) == _DATA
        with pytest.raises(StoreError, match="k"):
            _get(store, "k", b"old")

    def test_other_bytes_of_the_same_length_are_refused(self, store: BlobStore) -> None:
        store.put("k", b"abc")
        with pytest.raises(StoreError, match="digest"):
            _get(store, "k", b"abd")

    def test_what_is_removed_is_gone_and_the_rest_is_not(self, store: BlobStore) -> None:
        ref = store.publish("k", 0, np.ones(2))
        store.put("k", b"1")
        store.put("l", b"2")
        store.remove("k")
        store.remove("k")
        with pytest.raises(StoreError, match="k"):
            _get(store, "k", b"1")
        assert _get(store, "l", b"2") == b"2"
        np.testing.assert_array_equal(store.fetch(ref), np.ones(2))

    @pytest.mark.parametrize("key", _KEYS)
    def test_a_key_that_could_leave_the_store_is_refused(self, store: BlobStore, key: str) -> None:
        for act in (
            lambda: store.put(key, b""),
            lambda: _get(store, key, b""),
            lambda: store.remove(key),
        ):
            with pytest.raises(ParameterError, match="`key`"):
                act()


def _get(store: BlobStore, key: str, data: bytes) -> bytes:
    return store.get(key, digest=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
