"""How fast the explorer answers, and how large pages are.

    python -m benchmarks.explorer

Each question is sent to a server over loopback, as the page sends it; the first of a
model pays for its graph, and no answer is taken from the cache. Needs Bokeh.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from itertools import product
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from costmodel import simulate
from costmodel.pages import estimate_page
from planner.explorer import Catalogue, Server
from profiles.hardware import cluster

WHERE = "dgx-h100"
MODELS = {
    "gpt-13b": {"gpus": 64},
    "llama3-70b": {"gpus": 256, "recompute": "full"},
    "llama3-405b": {"gpus": 1024, "tp": 8, "recompute": "selective"},
    "mixtral-8x7b": {"gpus": 64, "ep": 8},
    "deepseek-v3": {"gpus": 1024, "ep": 64},
    "gpt-1t": {"gpus": 1024, "tp": 8, "global_batch": 1024},
    "qwen3-8b": {"gpus": 32, "recompute": "auto"},
}
SWEEP = {
    "pp": (1, 2, 4, 8),
    "micro_batch": (1, 2, 4),
    "inter_gb_per_s": (None, 12.5),
    "zero": (1, 3),
}
PAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "4 stages × 96 micro-batches": (
        "gpt-13b",
        {"gpus": 64, "tp": 4, "pp": 4, "micro_batch": 4},
    ),
    "64 stages × 512 micro-batches": (
        "gpt-1t",
        {"gpus": 512, "tp": 8, "pp": 64, "micro_batch": 1, "global_batch": 512},
    ),
    "64 stages × 2,048 micro-batches": (
        "gpt-1t",
        {"gpus": 512, "tp": 8, "pp": 64, "micro_batch": 1, "global_batch": 2048},
    ),
}


@contextmanager
def served() -> Iterator[int]:
    """The port of an explorer."""
    server = Server({"model": "gpt-13b", "gpus": 64}, Catalogue(), 0)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def asked(port: int, question: dict[str, Any]) -> tuple[int, float, int]:
    """Status, milliseconds and bytes of an answer."""
    began = perf_counter()
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/simulate", json.dumps(question), headers)
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    return reply.status, 1e3 * (perf_counter() - began), len(body)


def main() -> None:
    """Print the answers' times by model, and the sizes of pages."""
    print("model            answers refused  first  median   p95   max ms  largest KB")
    every: list[float] = []
    with served() as port:
        for name, base in MODELS.items():
            times, sizes, refused = [], [], 0
            for values in product(*SWEEP.values()):
                question = {"model": name, "cluster": WHERE, **base}
                question |= dict(zip(SWEEP, values, strict=True))
                status, ms, size = asked(port, question)
                refused += status != 200
                if status == 200:
                    times.append(ms)
                    sizes.append(size)
            every += times
            p95 = quantiles(times, n=20)[-1]
            print(
                f"{name:16} {len(times):7} {refused:7} {times[0]:6.0f} "
                f"{median(times):7.0f} {p95:5.0f} {max(times):7.0f} "
                f"{max(sizes) / 1e3:12.0f}"
            )
    late = sum(ms > 200 for ms in every)
    print(f"{late} of {len(every)} answers took more than 200 ms")
    for title, (name, options) in PAGES.items():
        found = simulate(name, **options)
        began = perf_counter()
        page = estimate_page(found, cluster("dgx-a100-80gb"))
        seconds = perf_counter() - began
        passes = found.timeline.program.rows.size
        print(
            f"page of {title}: {passes:,} passes, {len(page.encode()) / 1e6:.2f} MB, "
            f"written in {seconds:.2f} s"
        )


if __name__ == "__main__":
    main()
