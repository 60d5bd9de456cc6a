from __future__ import annotations

from habana_frameworks.torch import hpu


class Metric:
    def stats(self) -> list[tuple[str, int]]:
        return [("TotalNumber", hpu.CARD.n_compilations), ("TotalTime", 0), ("AvgTime", 0)]


def metric_global(name: str) -> Metric:
    assert name == "graph_compilation"
    return Metric()
