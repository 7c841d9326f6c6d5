"""Flows that share links, against SimGrid: when each of them ends (30 random cases, zero latency)."""

from __future__ import annotations

import gzip
import json
from typing import Any

import simpy

from triosim import Topology
from triosim.networks import PacketNetwork
from validation.report import Row, data, relative


def rows() -> list[Row]:
    with gzip.open(data("network/max_min_flows.jsonl.gz"), "rt") as lines:
        cases = [json.loads(line) for line in lines]
    worst = max(error for case in cases for error in errors(case))
    flows = sum(len(case["flows"]) for case in cases)
    return [Row(f"end of each of {flows} flows", "SimGrid 3.32 (CM02)", len(cases), worst, 1e-9)]


def errors(case: dict[str, Any]) -> list[float]:
    """Run the flows of one case at their times; each has a source, a destination and a route of its own."""
    flows = case["flows"]
    topology = Topology.from_dict(
        {
            "links": {name: {"bandwidth": rate, "latency": 0} for name, rate in case["links"].items()},
            "routes": [{"from": f"s{flow['id']}", "to": f"d{flow['id']}", "links": flow["route"]} for flow in flows],
        }
    )
    env = simpy.Environment()
    network = PacketNetwork(env, topology)
    ends: dict[int, float] = {}

    def send(flow: dict[str, Any]) -> Any:
        yield env.timeout(flow["start"])
        yield network.transfer(f"s{flow['id']}", f"d{flow['id']}", flow["bytes"])
        ends[flow["id"]] = env.now

    for flow in flows:
        env.process(send(flow))
    env.run()
    return [relative(ends[flow["id"]], flow["finish"]) for flow in flows]
