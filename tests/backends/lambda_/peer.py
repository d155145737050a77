"""An HTTP server that stands where Lambda stands and says what the test scripts."""

from __future__ import annotations

import gc
import hashlib
import hmac
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, urlsplit

KEY, SECRET, REGION = "AKIDEXAMPLE", "not-a-real-secret", "eu-test-1"


@dataclass(frozen=True, kw_only=True)
class Request:
    path: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes


@dataclass(frozen=True, kw_only=True)
class Response:
    status: int = 200
    body: bytes = b"{}"
    headers: Mapping[str, str] = field(default_factory=dict)
    date: str | None = None  # this machine's time unless given
    hang_up: bool = False  # say nothing, and close the connection
    raw: bytes | None = None  # these bytes, whatever they are, and close the connection
    stream: Iterator[bytes] | None = None  # these, one after the other, likewise


class Peer:
    """``respond`` says what each request is answered; ``release`` ends what it waits for."""

    def __init__(self) -> None:
        self.respond: Callable[[Request], Response] = lambda request: Response(body=request.body)
        self.requests: list[Request] = []
        self.connections = self.answered = 0
        self.counting = threading.Lock()
        self.release = threading.Event()
        self.url = ""


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Peer]:
    peer = Peer()
    server = _Server(("127.0.0.1", 0), _handler_of(peer))
    if tls is not None:
        server.socket = tls.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    peer.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield peer
    finally:
        peer.release.set()
        server.shutdown()
        thread.join()
        gc.collect()  # urllib3 closes the connections of a pool when the pool is collected
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients that go away are what is tested."""


def _handler_of(peer: Peer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        timeout = 30.0  # of an idle connection: no thread outlives its test for long

        def setup(self) -> None:
            super().setup()
            with peer.counting:
                peer.connections += 1

        def do_POST(self) -> None:
            request = Request(
                path=self.path,
                headers={name.lower(): value for name, value in self.headers.items()},
                body=self.rfile.read(int(self.headers["Content-Length"])),
            )
            peer.requests.append(request)
            response = peer.respond(request)
            if response.hang_up:
                self.close_connection = True
                return
            if response.raw is not None or response.stream is not None:
                self.close_connection = True
                with suppress(ConnectionError):  # the client has enough
                    for piece in response.stream or [response.raw]:
                        self.wfile.write(piece)
                return
            self.send_response_only(response.status)
            date = self.date_time_string() if response.date is None else response.date
            self.send_header("Date", date)
            for name, value in response.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(response.body)))
            self.end_headers()
            self.wfile.write(response.body)
            with peer.counting:
                peer.answered += 1

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    return Handler


def own_certificate(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """Make a certificate for 127.0.0.1; return a server's context, and the bundle to trust."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "peer")])
    now = datetime.datetime.now(datetime.UTC)
    host = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([host]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    bundle, secret = folder / "bundle.pem", folder / "key.pem"
    bundle.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(bundle, secret)
    return context, bundle


def signature_is_right(request: Request, url: str) -> bool:
    """Work a request's Signature Version 4 out from the specification; compare."""
    told = request.headers["authorization"]
    scheme, _, rest = told.partition(" ")
    parts = dict(each.strip().split("=", 1) for each in rest.split(","))
    date = request.headers["x-amz-date"]
    scope = f"{date[:8]}/{REGION}/lambda/aws4_request"
    if scheme != "AWS4-HMAC-SHA256" or parts["Credential"] != f"{KEY}/{scope}":
        return False
    names = parts["SignedHeaders"].split(";")
    values = {**request.headers, "host": urlsplit(url).netloc}
    path, _, query = request.path.partition("?")
    canonical = "\n".join(
        [
            "POST",
            quote(path, safe="/~"),
            query,
            *[f"{name}:{' '.join(values[name].split())}" for name in names],
            "",
            ";".join(names),
            hashlib.sha256(request.body).hexdigest(),
        ]
    )
    told_apart = ["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(canonical.encode()).hexdigest()]
    key = f"AWS4{SECRET}".encode()
    for step in (date[:8], REGION, "lambda", "aws4_request"):
        key = hmac.new(key, step.encode(), hashlib.sha256).digest()
    due = hmac.new(key, "\n".join(told_apart).encode(), hashlib.sha256).hexdigest()
    return {"host", "x-amz-date"} <= set(names) and hmac.compare_digest(due, parts["Signature"])
