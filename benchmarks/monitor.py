"""What the monitor costs: the processor's seconds of its threads, over those of the thread that runs the engine.

The page is another process, which asks for the state every second. One interpreter runs one thread at a time, so that the run
waits for what the monitor's threads compute and for nothing else of theirs. Its own part, a check of each event and a call
every 2,048 tasks, is in the run's seconds.

    python -m benchmarks.monitor
"""

from __future__ import annotations

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
    watched_run()  # what is read, imported and planned once
    shares = [others / run for run, others in (watched_run() for _ in range(ROUNDS))]
    print(f"{ROUNDS} runs: the monitor took {min(shares):.1%} to {max(shares):.1%} of what the run took")


def watched_run() -> tuple[float, float]:
    """Return the processor's seconds of a run's own thread, and those of the monitor's threads beside it."""
    run = WatchedRun(lambda seconds, tasks: None)
    with served(run.state, run.actions) as url:
        page = subprocess.Popen([sys.executable, "-c", PAGE, url], stderr=subprocess.DEVNULL)
        began, began_alone = time.process_time(), time.thread_time()
        triosim.simulate("llama3-8b", "dp=4,pp=8", progress=run, **OPTIONS)
        both, alone = time.process_time() - began, time.thread_time() - began_alone
        page.kill()
        page.wait()
    return alone, both - alone


if __name__ == "__main__":
    main()
