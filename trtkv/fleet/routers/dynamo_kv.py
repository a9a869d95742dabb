"""Cost of prefill and decode. Source: Dynamo, kv-router scheduling/selector and router configuration."""

from __future__ import annotations

from math import exp
from random import Random

from trtkv.errors import ConfigurationError
from trtkv.fleet.router import FleetView, RoutedRequest, Router


class DynamoKvRouter(Router):
    """The smallest ``scale`` x max(0, backlog + prompt blocks - ``credit`` x found) + active blocks with this request.

    Temperature 0: equals are drawn. Above 0: all are, with weights exp(-(cost - least) / ((most - least) temperature)).
    ``decay`` lowers the credit of a replica with more prefill work than the least loaded one.
    """

    looks_into_caches = True

    def __init__(
        self, random: Random, scale: float = 1, credit: float = 1, decay: float = 0, temperature: float = 0
    ) -> None:
        if temperature < 0:
            raise ConfigurationError(f"temperature is {temperature}; give 0 or more")
        self._random = random
        self._scale, self._credit, self._decay, self._temperature = scale, credit, decay, temperature

    def _prefill(self, request: RoutedRequest, view: FleetView, replica: int) -> float:
        prompt, backlog = request.num_blocks, view.prefill_backlog(replica)
        credit = self._credit
        if self._decay and prompt:
            least = min(view.prefill_backlog(other) for other in range(view.num_replicas))
            credit /= 1 + self._decay * (backlog - least) / prompt
        return max(0, backlog + prompt - credit * view.found(replica))

    def cost(self, request: RoutedRequest, view: FleetView, replica: int) -> float:
        """Blocks to compute and to hold."""
        return self._scale * self._prefill(request, view, replica) + view.active_blocks(replica, request)

    def choose(self, request: RoutedRequest, view: FleetView) -> int:
        """Looks at costs."""
        costs = [self.cost(request, view, replica) for replica in range(view.num_replicas)]
        return self._draw_least(costs) if self._temperature == 0 else self._draw_weighted(costs)

    def _draw_least(self, costs: list[float]) -> int:
        best, num_tied = 0, 1
        for replica in range(1, len(costs)):
            if costs[replica] < costs[best]:
                best, num_tied = replica, 1
            elif costs[replica] == costs[best]:
                num_tied += 1
                if self._random.randrange(num_tied) == 0:
                    best = replica
        return best

    def _draw_weighted(self, costs: list[float]) -> int:
        least, most = min(costs), max(costs)
        spread = (most - least) * self._temperature
        weights = [exp(-(cost - least) / spread) if spread else 1.0 for cost in costs]
        drawn, total = self._random.random() * sum(weights), 0.0
        for replica, weight in enumerate(weights):
            total += weight
            if drawn <= total:
                return replica
        return len(costs) - 1
