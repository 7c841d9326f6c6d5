"""The server of the monitor's page: Starlette on uvicorn, in a thread, on the loopback address alone.

The URL holds a token, which the page sends with every request; it stands behind ``#``, so that no request line has it. A page
of another origin knows no token, and may read no answer, so that it can neither see nor control a run.
"""

from __future__ import annotations

import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

from triosim.errors import OptionError
from triosim.monitor.self_profile import SelfProfile

ADDRESS = "127.0.0.1"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
_PATIENCE = 5.0  # seconds until the server has begun

State = Callable[[], Mapping[str, Any]]


@contextmanager
def served(state: State, actions: Mapping[str, Callable[[], None]], port: int = 0) -> Iterator[str]:
    """Serve a page of a run's ``state`` while the block lasts, with buttons for its ``actions``; yield its URL.

    The URL is printed on standard error. A ``port`` of 0 takes any that is free. Raises ``OptionError`` where it is taken, or
    where Starlette and uvicorn are not installed.
    """
    try:
        import uvicorn
    except ImportError:
        fix = "pip install 'triosim[monitor]'"
        raise OptionError("needs Starlette and uvicorn", where="--monitor", fix=fix) from None
    listening = _listening(port)
    port = listening.getsockname()[1]
    token = secrets.token_urlsafe(24)
    profile = SelfProfile(threading.get_ident())
    app = _app(lambda: {**state(), **profile.look()}, actions, token, port)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1))
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]  # Ctrl-C is the run's
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    url = f"http://{ADDRESS}:{port}/#{token}"
    print(f"triosim: monitor at {url}", file=sys.stderr, flush=True)
    try:
        yield url
    finally:
        server.should_exit = True
        thread.join(_PATIENCE)
        listening.close()
        profile.close()


def _listening(port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((ADDRESS, port))
        found.listen()  # who asks before the server has begun waits for it
    except (OSError, OverflowError) as error:
        found.close()
        fix = "name another port, or leave it out"
        why = getattr(error, "strerror", None) or "ports are below 65536"
        raise OptionError(f"port {port} cannot be taken: {why}", where="--monitor-port", fix=fix) from None
    return found


def _app(state: State, actions: Mapping[str, Callable[[], None]], token: str, port: int) -> Any:
    """Return the application; only the page itself is given without the token, and nothing to who names another host."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route

    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    page = files("triosim.monitor").joinpath("assets").joinpath("monitor.html").read_text(encoding="utf-8")

    def is_known(request: Request) -> bool:
        return secrets.compare_digest(request.headers.get("x-token", ""), token)

    def show(request: Request) -> Response:
        return HTMLResponse(page, headers=headers)

    def tell(request: Request) -> Response:
        if not is_known(request):
            return JSONResponse({"error": "the token is wrong"}, 403, headers)
        return JSONResponse({**state(), "actions": list(actions)}, headers=headers)

    def act(request: Request) -> Response:
        if not is_known(request):
            return JSONResponse({"error": "the token is wrong"}, 403, headers)
        action = actions.get(request.path_params["action"])
        if action is None:
            return JSONResponse({"error": "there is no such action"}, 404, headers)
        action()
        return JSONResponse({"done": True}, headers=headers)

    hosts = [ADDRESS, "localhost"]
    return Starlette(
        routes=[Route("/", show), Route("/state", tell), Route("/do/{action}", act, methods=["POST"])],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)],
    )
