"""What the monitor costs: the processor's seconds of a run that a page looks at, over those of the same run without it.

The page is another process, which asks for the state every second. The least of several runs each counts.

    python -m benchmarks.monitor
"""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import time

import triosim
from triosim.monitor.server import served
from triosim.monitor.watched_run import WatchedRun

ROUNDS = 8
#: Every rank and every micro-batch is simulated.
OPTIONS = {
    "gpus": 32,
    "topology": "dgx-h100(gpus=32)",
    "micro_batch_size": 1,
    "micro_batches": 768,
    "seq": 4096,
    "timeline": True,
}
PAGE = """
import sys, time, urllib.request
before, _, token = sys.argv[1].partition("#")
request = urllib.request.Request(before + "state", headers={"x-token": token})
while True:
    urllib.request.urlopen(request).read()
    time.sleep(1)
"""


def main() -> None:
    processor_seconds(watch=False)  # what is read and planned once
    least = {False: math.inf, True: math.inf}
    for _ in range(ROUNDS):
        for watch in least:
            gc.collect()
            least[watch] = min(least[watch], processor_seconds(watch=watch))
    alone, watched = least.values()
    print(f"the least of {ROUNDS}: alone {alone:.2f} s, watched {watched:.2f} s: {watched / alone - 1:+.1%}")


def processor_seconds(*, watch: bool) -> float:
    """Return the processor's seconds of a run."""
    if not watch:
        began = time.process_time()
        triosim.simulate("llama3-8b", "dp=4,pp=8", **OPTIONS)
        return time.process_time() - began
    run = WatchedRun(lambda seconds, tasks: None)
    with served(run.state, run.actions) as url:
        page = subprocess.Popen([sys.executable, "-c", PAGE, url], stderr=subprocess.DEVNULL)
        began = time.process_time()
        triosim.simulate("llama3-8b", "dp=4,pp=8", progress=run, **OPTIONS)
        page.kill()
        page.wait()
        return time.process_time() - began


if __name__ == "__main__":
    main()
