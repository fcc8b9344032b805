"""A server that is not there is told before anything is spent."""

import socket
import threading

import pytest

from flashevolve_plugins import BackendError, UsageError
from flashevolve_plugins._connection import require_connections


@pytest.fixture
def server():
    """Listen on a loopback port, and count who connects."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        seen = []

        def serve():
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    if connection.recv(1) == b"x":
                        return
                    seen.append(True)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1], seen, thread
        if thread.is_alive():
            with socket.create_connection(listening.getsockname()) as last:
                last.sendall(b"x")
            thread.join(60)


@pytest.fixture
def closed_port():
    """Give a port that nobody listens on, and that nobody else is given meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_a_server_that_answers_is_asked_once_however_often_it_is_named(server):
    port, seen, thread = server
    require_connections([f"http://127.0.0.1:{port}/v1"] * 3)
    with socket.create_connection(("127.0.0.1", port)) as last:
        last.sendall(b"x")
    thread.join(60)
    assert seen == [True]


def test_no_servers_need_no_connection():
    require_connections([])


def test_a_closed_port_is_named_with_what_to_do(closed_port):
    url = f"http://127.0.0.1:{closed_port}/v1"
    with pytest.raises(BackendError, match=f"No server answers at {url} .*start it, or correct .* Nothing was spent"):
        require_connections([url])


def test_the_first_dead_server_among_many_is_named(server, closed_port):
    with pytest.raises(BackendError, match=f":{closed_port}/v1"):
        require_connections([f"http://127.0.0.1:{server[0]}", f"http://127.0.0.1:{closed_port}/v1"])


def test_a_host_that_does_not_exist_is_a_server_that_does_not_answer(monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    with pytest.raises(BackendError, match="No server answers at"):
        require_connections(["http://" + "a" * 80 + ".invalid/"])  # no name at all: nobody is asked
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(BackendError, match="No server answers at http://nowhere.invalid:1/v1 .*Name or service"):
        require_connections(["http://nowhere.invalid:1/v1"])


@pytest.mark.parametrize(
    "url",
    [
        *("", "localhost", "127.0.0.1:8000/v1", "ftp://127.0.0.1/"),
        *("http://", "http://:80", "http://h:99999/v1", "http://h:x/", "http://[1:2/v1"),
    ],
)
def test_what_is_no_url_is_refused_with_an_example(url):
    with pytest.raises(UsageError, match="is not one: write it like http://127.0.0.1:8000/v1") as caught:
        require_connections([url])
    assert repr(url) in str(caught.value)


@pytest.mark.parametrize(("url", "port"), [("http://host/v1", 80), ("https://host", 443), ("https://host:8443/", 8443)])
def test_the_port_follows_from_the_scheme(url, port, monkeypatch):
    asked = []

    class Connection:
        def close(self):
            asked.append("closed")

    def connect(address, timeout):
        asked.append((address, timeout))
        return Connection()

    monkeypatch.setattr(socket, "create_connection", connect)
    require_connections([url])
    assert asked == [(("host", port), 5.0), "closed"]
