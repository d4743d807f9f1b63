import socket

import psutil

from probes.nic import NicSampler
from traces import schema


def test_counts_agree_with_psutil_and_see_loopback_traffic(rows):
    sampler = NicSampler(rows)
    sampler.sample()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:
            sender.sendall(b"x" * 200_000)
            sender.shutdown(socket.SHUT_WR)
            while receiver.recv(65536):
                pass
    sampler.sample()
    loopback = [row for row in rows.of(schema.NIC) if row["interface"] == "lo"]
    assert loopback[1]["rx_bytes"] - loopback[0]["rx_bytes"] >= 200_000
    known = psutil.net_io_counters(pernic=True)
    latest = {row["interface"]: row for row in rows.of(schema.NIC)}
    assert set(latest) == set(known)
    for interface, row in latest.items():
        assert (row["rx_errors"], row["rx_dropped"]) == (known[interface].errin, known[interface].dropin)
        assert (row["tx_errors"], row["tx_dropped"]) == (known[interface].errout, known[interface].dropout)
