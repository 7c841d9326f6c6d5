"""The photonic network: circuits by hand. A circuit takes 20 ms here, carries 1 GB/s and needs 1 us from end to end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import simpy
import traces
from hypothesis import given, settings
from hypothesis import strategies as st

import triosim
from triosim.errors import OptionError, TriosimError
from triosim.networks import PhotonicNetwork, Topology
from triosim.networks.construction import network_options
from triosim.networks.photonic.optics import OPTIONS, optics_of

MS = 1e-3
US = 1e-6
SETUP = 20 * MS
LATE = 1 * US
MB = 1e6  # takes 1 ms

Sent = dict[str, float]


def network(gpus: int = 8, **options: object) -> PhotonicNetwork:
    given: dict[str, object] = {"ports": 8, "bandwidth": "1 GB/s", "latency": "1 us", "setup": "20 ms", **options}
    topology = Topology.load(f"ring({gpus}, bandwidth=1 GB/s, latency=1 us)")
    return PhotonicNetwork(simpy.Environment(), topology, **given)  # type: ignore[arg-type]


def send(net: PhotonicNetwork, *messages: tuple[float, int, int, float]) -> list[float]:
    """Send (at, source, destination, bytes) and return when each is delivered."""
    delivered = [0.0] * len(messages)

    def start(number: int) -> Callable[[simpy.Event], None]:
        _, source, destination, nbytes = messages[number]

        def go(_: simpy.Event) -> None:
            event = net.transfer(source, destination, nbytes)
            event.callbacks.append(lambda _: delivered.__setitem__(number, net.env.now))

        return go

    for number, message in enumerate(messages):
        net.env.timeout(message[0]).callbacks.append(start(number))
    net.env.run()
    return delivered


def test_the_first_message_waits_for_its_circuit_and_the_next_finds_it() -> None:
    net = network()
    first, second = send(net, (0, 0, 5, MB), (0.1, 0, 5, MB))
    assert first == pytest.approx(SETUP + 1 * MS + LATE)
    assert second == pytest.approx(0.1 + 1 * MS + LATE)
    assert net.statistics.circuits_made == 1
    assert net.statistics.messages == 2
    assert net.statistics.messages_on_standing_circuits == 1
    assert net.statistics.waiting_for_circuit_s == pytest.approx(SETUP)


def test_distance_does_not_matter() -> None:
    net = network(84)
    assert send(net, (0, 0, 1, MB), (0, 2, 43, MB)) == pytest.approx([SETUP + 1 * MS + LATE] * 2)


def test_messages_in_one_direction_take_turns_and_in_both_directions_do_not() -> None:
    """The next leaves when the last byte of the one before has left: the latency is met once."""
    there, again, back = send(network(), (0, 0, 1, MB), (0, 0, 1, 2 * MB), (0, 1, 0, MB))
    assert there == pytest.approx(SETUP + 1 * MS + LATE)
    assert again == pytest.approx(SETUP + 3 * MS + LATE)
    assert back == pytest.approx(SETUP + 1 * MS + LATE)


def test_the_circuit_that_has_been_idle_longest_is_torn_down() -> None:
    """GPU 0 has two ports, and used 0-1 after 0-2: so 0-2 goes, 0-1 stands, and 0-2 must be made again."""
    net = network(ports=2)
    times = send(net, (0, 0, 1, MB), (0, 0, 2, MB), (0.1, 0, 1, MB), (0.2, 0, 3, MB), (0.3, 0, 1, MB), (0.4, 0, 2, MB))
    waited = [True, True, False, True, False, True]
    starts = [0, 0, 0.1, 0.2, 0.3, 0.4]
    assert times == pytest.approx([s + SETUP * w + 1 * MS + LATE for s, w in zip(starts, waited, strict=True)])
    assert net.statistics.circuits_made == 4
    assert net.statistics.circuits_torn_down == 2
    assert net.statistics.waits_for_port == 0  # there was always an idle one to tear down


def test_a_circuit_takes_a_port_at_both_ends() -> None:
    """GPU 1 has one port, busy with GPU 0; so GPU 2, all of whose ports are free, waits for it."""
    net = network(ports=1)
    first, second = send(net, (0, 0, 1, 10 * MB), (1 * MS, 2, 1, MB))
    assert first == pytest.approx(SETUP + 10 * MS + LATE)
    assert second == pytest.approx(first + SETUP + 1 * MS + LATE)
    assert net.statistics.waits_for_port == 1
    assert net.statistics.waiting_for_port_s == pytest.approx(first - 1 * MS)


def test_who_waits_for_a_port_gets_it_in_order() -> None:
    """All want GPU 0, which has one port; GPU 2 came before GPU 3, which could also go on with GPU 4, but waits its turn."""
    net = network(ports=1)
    times = send(net, (0, 1, 0, MB), (1 * MS, 2, 0, MB), (2 * MS, 3, 0, MB), (3 * MS, 3, 4, MB))
    one = SETUP + 1 * MS + LATE
    assert times == pytest.approx([one, 2 * one, 3 * one, 4 * one])


def test_a_circuit_that_is_used_again_at_the_instant_is_not_idle() -> None:
    """GPU 2 waits for a port of GPU 0; what is sent when the first message is delivered still goes first."""
    net = network(ports=1)
    times: list[float] = []

    def program() -> object:
        yield net.transfer(0, 1, MB)
        yield net.transfer(0, 1, MB)
        times.append(net.env.now)

    net.env.process(program())  # type: ignore[arg-type]
    [other] = send(net, (1 * MS, 2, 0, MB))
    assert times == pytest.approx([SETUP + 2 * (1 * MS + LATE)])
    assert other == pytest.approx(times[0] + SETUP + 1 * MS + LATE)


def test_space_in_the_buffer_is_waited_for() -> None:
    """Two messages of 2 MB to one GPU that has room for 3 MB: the second leaves when the first is delivered."""
    net = network(buffer="3 MB")
    first, second = send(net, (0, 0, 2, 2 * MB), (0, 1, 2, 2 * MB))
    assert first == pytest.approx(SETUP + 2 * MS + LATE)
    assert second == pytest.approx(first + 2 * MS + LATE)
    assert net.statistics.waits_for_buffer == 1
    assert net.statistics.waiting_for_buffer_s == pytest.approx(2 * MS + LATE)


def test_a_message_larger_than_the_buffer_takes_all_of_it() -> None:
    first, second = send(network(buffer="1 MB"), (0, 0, 2, 5 * MB), (0, 1, 2, 0.1 * MB))
    assert first == pytest.approx(SETUP + 5 * MS + LATE)
    assert second == pytest.approx(first + 0.1 * MS + LATE)


def test_a_circuit_of_several_ports_has_their_bandwidth() -> None:
    net = network(ports=8, ports_per_circuit=4)
    times = send(net, (0, 0, 1, 4 * MB), (0, 0, 2, 4 * MB), (0, 0, 3, 4 * MB))
    one = SETUP + 1 * MS + LATE
    assert times == pytest.approx([one, one, 2 * one])  # two circuits at a time


def test_no_bytes_and_no_distance() -> None:
    net = network()
    assert send(net, (0, 0, 0, MB), (0, 0, 1, 0)) == pytest.approx([0, SETUP + LATE])
    assert net.statistics.messages == 1


def test_what_is_not_between_gpus_goes_over_links() -> None:
    topology = Topology.load("dgx-h100")
    net = PhotonicNetwork(simpy.Environment(), topology)
    host = topology.host_of(0)
    assert host is not None
    net.env.run(net.transfer(host, 0, 50e6))
    assert net.env.now == pytest.approx(1 * MS + 1 * US)  # PCIe 5: 50 GB/s
    assert net.statistics.messages == 0
    carried = {name: nbytes for name, nbytes in net.bytes_by_link().items() if nbytes}
    assert carried == pytest.approx({"host0->gpu0": 50e6, "host0 memory": 50e6})


def test_a_ring_on_the_wafer_by_hand() -> None:
    """84 GPUs, two circuits each: one set-up, 2 x 83/84 of the bytes at 60.5 GB/s, 166 latencies."""
    wafer = Topology.load("wafer-84")
    for form in ("pipelined", "steps"):
        net = PhotonicNetwork(simpy.Environment(), wafer, form=form)  # type: ignore[arg-type]
        net.env.run(net.collective("all_reduce", range(84), 500e6))
        moving = 2 * 83 / 84 * 500e6 / 60.5e9 + 166 * 500e-9
        assert net.env.now == pytest.approx(20 * MS + moving, rel=1e-9)
        assert net.statistics.circuits_made == 84
        net.env.run(net.collective("all_reduce", range(84), 500e6))
        assert net.env.now == pytest.approx(20 * MS + 2 * moving, rel=1e-9)
        assert net.statistics.circuits_made == 84


Message = st.tuples(st.floats(0, 0.2), st.integers(0, 5), st.integers(0, 5), st.floats(0, 30 * MB))


@settings(max_examples=60, deadline=None)
@given(
    messages=st.lists(Message, min_size=1, max_size=25),
    ports=st.integers(1, 3),
    buffer=st.sampled_from(["unlimited", "2 MB", "40 MB"]),
    setup=st.sampled_from([0.0, SETUP]),
)
def test_whatever_is_sent_arrives(messages: list[tuple[float, int, int, float]], ports: int, buffer: str, setup: float):
    """No two wait for each other for ever; bytes are conserved; nobody is faster than an empty network allows."""
    net = network(6, ports=ports, buffer=buffer, setup=setup)
    times = send(net, *messages)
    for (at, source, destination, nbytes), time in zip(messages, times, strict=True):
        if source != destination:
            assert time >= at + nbytes / 1e9 + LATE - 1e-12
    between = [message for message in messages if message[1] != message[2]]
    assert sum(net.bytes_by_link().values()) == pytest.approx(sum(message[3] for message in between))
    counted = net.statistics
    assert counted.messages == len(between)
    assert counted.messages_on_standing_circuits + counted.waits_for_circuit == len(between)
    assert 0 <= counted.circuits_made - counted.circuits_torn_down <= 6 * ports // 2
    assert all(not gpu.wanted and not gpu.wanting_bytes and not gpu.coming for gpu in net._gpus.values())


def test_the_file_says_what_circuits_there_are_and_options_change_it(tmp_path: Path) -> None:
    path = tmp_path / "wafer.yaml"
    path.write_text("preset: wafer-84\nphotonic: {ports: 4, setup: 1 ms, buffer: 64 MB, bandwidth: 480 Gb/s}\n")
    topology = Topology.load(path)
    net = PhotonicNetwork(simpy.Environment(), topology)
    assert (net.optics.ports, net.optics.setup, net.optics.buffer, net.optics.bandwidth) == (4, 1e-3, 64e6, 60e9)
    assert PhotonicNetwork(simpy.Environment(), topology, setup="2 ms").optics.setup == 2e-3
    assert PhotonicNetwork(simpy.Environment(), topology, setup="2 ms").optics.ports == 4


def test_optics_are_the_declared_options_and_nothing_else() -> None:
    assert network_options("photonic") == tuple(option.name for option in OPTIONS)
    for wrong, said in (
        ({"prots": 4}, "prots: unknown key; did you mean 'ports'?"),
        ({"setup": "-1 ms"}, "setup: -1 ms is not a time of 0 or more"),
    ):
        with pytest.raises(OptionError) as error:
            network(**wrong)
        assert str(error.value).startswith(said)
    with pytest.raises(OptionError, match="no part of this run takes 'prots'; did you mean 'ports'"):
        triosim.simulate(traces.mlp(), "ddp", gpus=4, network="photonic", options={"prots": 4})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("photonic: {prots: 4}", "w.yaml:2: photonic.prots: unknown key; did you mean 'ports'?"),
        ("photonic: {ports: 0}", "w.yaml:2: photonic.ports: 0 is less than 1; give 1 or more"),
        ("photonic: {ports: 2, ports_per_circuit: 3}", "a circuit takes 3 ports, a GPU has 2"),
        ("photonic:\n  setup: -1 ms", "w.yaml:3: photonic.setup: -1 ms is not a time of 0 or more; give a time"),
        ("photonic: {buffer: 0}", "0 is not a positive size"),
        ("photonic: 8", "w.yaml:2: photonic: 8 is not a mapping"),
        ("photonics: {}", "did you mean 'photonic'?"),
    ],
)
def test_what_a_file_says_wrong(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(f"preset: wafer-84\n{text}\n")
    with pytest.raises(TriosimError) as error:
        optics_of(Topology.load(path))
    assert said in str(error.value)


def test_a_result_shows_circuits_as_links_and_counts_them(tmp_path: Path) -> None:
    result = triosim.simulate(
        traces.mlp(), "ddp", gpus=8, topology="wafer-84", network="photonic", timeline=True, options={"setup": "1 ms"}
    )
    carried = {link.name: link.bytes for link in result.data.links if link.bytes}
    assert len(carried) == 8  # a ring, one way round
    assert set(carried) <= {f"gpu{i}~gpu{j}" for i in range(8) for j in range(8)}
    assert result.data.network_figures is not None
    assert result.data.network_figures["circuits_made"] == 8
    result.save(tmp_path / "result.json")
    assert triosim.Result.load(tmp_path / "result.json").data == result.data
    result.save_timeline(tmp_path / "timeline.json")
    assert "gpu0~gpu1 utilisation" in (tmp_path / "timeline.json").read_text()
