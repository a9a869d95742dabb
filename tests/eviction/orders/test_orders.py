"""What every eviction order promises, and that ranked orders do what their formula says."""

from __future__ import annotations

from random import Random

import pytest

from trtkv.errors import ConfigurationError
from trtkv.eviction.orders.order import EvictionOrder, Incoming, Item
from trtkv.eviction.orders.registry import ORDERS, OrderSpec

CAPACITY = 12


class Model:
    """Drives an order with random calls and keeps what may be evicted."""

    def __init__(self, order: EvictionOrder, seed: int) -> None:
        self.order = order
        self.random = Random(seed)
        self.evictable: list[Item] = []
        self.held: list[Item] = []
        self.now = 0

    def step(self) -> None:
        self.now += 1
        action = self.random.randrange(6)
        if action <= 1 and len(self.evictable) + len(self.held) < CAPACITY:
            item = Item(self.random.randrange(3 * CAPACITY), self.random.randrange(5))
            self.order.stored(item, self.now)
            self.held.append(item)
        elif action == 2 and self.evictable:
            item = self.evictable.pop(self.random.randrange(len(self.evictable)))
            self.order.claimed(item)
            self.order.used(item, self.now)
            self.held.append(item)
        elif action == 3 and self.held:
            item = self.held.pop(self.random.randrange(len(self.held)))
            self.order.released(item, self.now)
            self.evictable.append(item)
        elif action == 4 and self.random.random() < 0.2:
            items = self.evictable if self.random.random() < 0.5 else self.held
            if items:
                self.order.removed(items.pop(self.random.randrange(len(items))))
        elif action == 5:
            self.take()

    def take(self) -> None:
        incoming = Incoming(self.random.randrange(3 * CAPACITY), 0)
        first, second = self.order.peek(incoming), self.order.peek(incoming)
        assert first is second
        taken = self.order.take(incoming)
        assert taken is first
        if self.evictable:
            self.evictable.remove(taken)  # fails unless it was evictable
        else:
            assert taken is None


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("seed", range(20))
def test_only_evictable_items_go_and_peeking_changes_nothing(name: str, seed: int) -> None:
    model = Model(OrderSpec(name).make(CAPACITY, seed), seed)
    for _ in range(600):
        model.step()
    for item in model.held:
        model.order.released(item, model.now)
        model.evictable.append(item)
    for _ in range(len(model.evictable) + 1):
        model.take()
    assert model.evictable == []


@pytest.mark.parametrize("name", [name for name in ORDERS if name != "random"])
def test_a_peek_more_gives_the_same_victims(name: str) -> None:
    victims = []
    for peeks in (0, 3):
        model = Model(OrderSpec(name).make(CAPACITY), seed=5)
        taken = []
        for _ in range(500):
            model.step()
            for _ in range(peeks):
                model.order.peek(Incoming("new", 0))
            taken.append(len(model.evictable))
        victims.append(taken)
    assert victims[0] == victims[1]


def test_random_orders_of_one_seed_agree_and_of_two_seeds_do_not() -> None:
    def victims(seed: int) -> list[object]:
        order = OrderSpec("random").make(CAPACITY, seed)
        for key in range(CAPACITY):
            item = Item(key, 0)
            order.stored(item, 0)
            order.released(item, 0)
        taken = [order.take() for _ in range(CAPACITY)]
        return [item.key for item in taken if item is not None]

    assert victims(1) == victims(1)
    assert victims(1) != victims(2)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (OrderSpec("lrru"), "eviction order 'lrru' is not known"),
        (OrderSpec("lru", {"small": 0.1}), "eviction order lru has no option 'small'; it has none"),
        (OrderSpec("s3-fifo", {"tiny": 0.1}), "has no option 'tiny'; it has small"),
        (OrderSpec("s3-fifo", {"small": 1.5}), "small is 1.5"),
        (OrderSpec("slru", {"protected": -1}), "protected is -1"),
        (OrderSpec("gdsf", {"depth-of-equal-cost": 0}), "depth-of-equal-cost is 0"),
    ],
)
def test_wrong_names_and_options_are_refused(spec: OrderSpec, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        spec.make(CAPACITY)


def test_slru_with_a_limit_gives_back_what_was_protected_longest_ago() -> None:
    order = OrderSpec("slru", {"protected": 0.25}).make(8)  # two protected items
    items = [Item(name, 0) for name in "abcd"]
    for now, item in enumerate(items):
        order.stored(item, now)
        order.used(item, 10 + now)  # all four are used twice
        order.released(item, 10 + now)
    assert [item.key for item in (order.take(), order.take(), order.take(), order.take()) if item] == [
        "a",
        "b",
        "c",
        "d",
    ]
    order = OrderSpec("slru", {"protected": 0.25}).make(8)
    first, second = Item("first", 0), Item("second", 0)
    order.stored(first, 0)
    order.used(first, 1)
    order.stored(second, 2)
    for item in (first, second):
        order.released(item, 3)
    assert order.peek() is second  # used once, later than the protected one
