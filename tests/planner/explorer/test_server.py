"""The explorer's server: what it answers, and what it refuses."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest

from costmodel.cli import simulate
from planner.cli import plan
from planner.explorer import Answers, Catalogue, Server
from planner.explorer.server import MOST_BYTES
from profiles.errors import Contradiction, InvalidSpec, UnknownName

START = {"model": "gpt-mini", "cluster": "dgx-a100-80gb", "gpus": 8}
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    pytest.importorskip("bokeh", reason="Bokeh draws the charts: meshwright[report]")
    found = Server(START, Catalogue(), 0)
    thread = threading.Thread(target=found.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield found
    found.shutdown()
    found.server_close()
    thread.join()


class Client:
    """Asks a server, as a page would unless it is told otherwise."""

    def __init__(self, server: Server) -> None:
        self.port = server.server_address[1]

    def __call__(
        self,
        method: str,
        path: str,
        body: str | bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read()
        finally:
            connection.close()

    def asked(self, path: str, **question: Any) -> tuple[int, dict[str, Any]]:
        status, _, body = self("POST", path, json.dumps(question), JSON)
        found: dict[str, Any] = json.loads(body)
        return status, found


@pytest.fixture
def client(server: Server) -> Client:
    return Client(server)


def test_the_page_loads_its_own_scripts_alone(client: Client) -> None:
    status, headers, body = client("GET", "/?gpus=8&tp=2")
    text = body.decode()
    assert status == 200
    assert "script-src 'self'" in headers["Content-Security-Policy"]
    assert not [name for name in headers if name.startswith("Access-Control")]
    for name in ("bokeh.min.js", "charts.js", "explorer.js"):
        assert f'<script src="{name}">' in text
        assert client("GET", f"/{name}")[0] == 200
    assert "http://" not in text.replace("http://www.w3.org", "")


def test_it_is_on_loopback_alone(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_a_port_that_is_taken_is_said(server: Server) -> None:
    with pytest.raises(Contradiction, match="give another --port"):
        Server(START, Catalogue(), server.server_address[1])


def test_an_answer_is_simulates(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = client.asked("/simulate", **START, tp=2, pp=2, micro_batch=1)
    assert status == 200
    argv = [*found["command"].split()[1:], "--json"]
    assert simulate.run(argv) == 0
    document = json.loads(capsys.readouterr().out)
    estimate = found["estimate"]
    assert estimate["step_time_s"] == document["step_time_s"]
    assert estimate["peak_memory_bytes"] == document["peak_memory_bytes"]
    assert found["layout"]["layout"] == document["layout"]


def test_links_price_and_failures_are_changed(client: Client) -> None:
    many = {**START, "gpus": 32, "dp": 32, "tokens": 1e9}
    slow = client.asked("/simulate", **many, inter_gb_per_s=1.0)[1]
    fast = client.asked("/simulate", **many, inter_gb_per_s=100.0)[1]
    assert slow["estimate"]["step_time_s"] > fast["estimate"]["step_time_s"]
    assert slow["layout"]["cluster"]["islands"][0]["levels"][-1]["bandwidth"] == {
        "value": 1.0,
        "unit": "GB/s",
        "source": "set in the explorer",
    }
    told = client.asked("/simulate", **many, dollars_per_h=3.0, mtbf_h=100.0)[1]
    assert "dollars" in told["sections"]["run"]
    assert "goodput" in told["sections"]["run"]


def test_a_plan_comes_as_controls(client: Client) -> None:
    status, found = client.asked("/plan", **START, tp=8)
    assert status == 200
    again = client.asked("/simulate", **START, **found["pins"])[1]
    best, here = found["estimate"]["step_time_s"], again["estimate"]["step_time_s"]
    assert here == pytest.approx(best, rel=0.01)
    assert found["series"]["pareto"]["points"]


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ({**START, "model": "gpt-14b"}, "did you mean"),
        ({**START, "model": "../../etc/passwd"}, "unknown model"),
        ({**START, "model": "/etc/passwd"}, "unknown model"),
        ({**START, "cluster": "setup.cfg"}, "unknown cluster"),
        ({**START, "cluster": "./nodes.json"}, "unknown cluster"),
        ({**START, "profile": "samples.json"}, "unknown field"),
        ({**START, "tp": 3}, "does not divide"),
        ({**START, "tp": -1}, "tp"),
        ({**START, "tp": [2]}, "tp must be"),
        ({**START, "mtbf_h": -5}, "mtbf_h must be"),
        ({**START, "inter_gb_per_s": "fast"}, "inter_gb_per_s must be"),
        ({"gpus": 8}, "model is missing"),
        ({"model": "gpt-mini"}, "--gpus is missing"),
        ([1], "JSON object"),
    ],
)
def test_a_wrong_question_is_one_line(
    client: Client, question: object, said: str
) -> None:
    status, _, body = client("POST", "/simulate", json.dumps(question), JSON)
    error = json.loads(body)["error"]
    assert status == 400
    assert said in error
    assert "\n" not in error
    assert "Traceback" not in error


@pytest.mark.parametrize("path", ["/../setup.cfg", "/etc/passwd", "/%2e%2e/setup.cfg"])
def test_no_file_is_served(client: Client, path: str) -> None:
    assert client("GET", path)[0] == 404


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"Host": "evil.example", **JSON}, "{}", 403),
        ({"Host": "127.0.0.1:1", **JSON}, "{}", 403),
        ({"Origin": "http://evil.example", **JSON}, "{}", 403),
        ({"Origin": "null", **JSON}, "{}", 403),
        ({"Content-Type": "text/plain"}, "{}", 415),
        (JSON, "{", 400),
        (JSON, "[" * 10_000, 400),
        (JSON, " " * (MOST_BYTES + 1), 413),
        ({"Content-Length": "9" * 30, **JSON}, "", 413),
        ({"Content-Length": "-1", **JSON}, "", 411),
    ],
)
def test_what_no_page_of_ours_sends_is_refused(
    client: Client, headers: dict[str, str], body: str, status: int
) -> None:
    assert client("POST", "/simulate", body, headers)[0] == status


def test_a_page_elsewhere_reads_nothing(client: Client) -> None:
    assert client("GET", "/", None, {"Host": "rebound.example"})[0] == 403
    assert client("OPTIONS", "/simulate")[0] == 501


def test_other_methods_and_questions_are_refused(client: Client) -> None:
    assert client("PUT", "/simulate", "{}", JSON)[0] == 501
    assert client("POST", "/shutdown", "{}", JSON)[0] == 404


def test_an_answer_is_bounded(client: Client) -> None:
    asked = {"model": "gpt-mini", "gpus": 8, "pp": 8, "global_batch": 2**20}
    status, found = client.asked("/simulate", **asked, micro_batch=1)
    assert status == 400
    assert "passes are more than" in found["error"]


def test_one_answer_at_a_time(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.explorer.server.PATIENCE_S", 0.05)
    with server.turn:
        assert client.asked("/simulate", **START)[0] == 503
    assert client.asked("/simulate", **START)[0] == 200


def test_names_from_the_command_line_are_escaped_in_the_page() -> None:
    pytest.importorskip("bokeh", reason="Bokeh draws the charts: meshwright[report]")
    from planner.explorer.page import explorer_page
    from profiles.models import model

    name = "</script><script>alert(1)</script>"
    page = explorer_page(
        {"model": name}, Catalogue(own_models={name: model("gpt-mini")})
    )
    assert "<script>alert" not in page


def test_answers_are_kept() -> None:
    answers = Answers(catalogue=Catalogue())
    assert answers.simulated(START) is answers.simulated(dict(START))


def test_a_catalogue_opens_no_file() -> None:
    for name in ("setup.cfg", "./x.json", "local"):
        with pytest.raises((UnknownName, InvalidSpec)):
            Answers(catalogue=Catalogue()).simulated({**START, "cluster": name})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--port", "8765"), "give --serve"),
        (("--serve", "--out", "x.json"), "--out"),
        (("--serve", "--json"), "--json"),
        (("--serve", "--offload", "optimizer"), "--offload"),
    ],
)
def test_what_has_no_control_is_refused(
    options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan.run(["--model", "gpt-mini", *options]) == 2
    assert said in capsys.readouterr().err
