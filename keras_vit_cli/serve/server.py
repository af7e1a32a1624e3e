"""`serve`: opens the port, loads the model and answers until a signal."""

import ipaddress
import signal
import socket
from collections.abc import Callable
from contextlib import suppress

from keras_vit._base.processors import available_processors
from keras_vit_cli.options.serve import ServeOptions

BACKLOG = 1024  # connections that the system accepts before the server does
ACCEPTED_AT_ONCE = 16  # of them, between two looks at those that are open
# What is accepted is answered within the first time, or cut off; what cannot be cut off ends, with
# the process, after the second.
ANSWER_SECONDS, STOP_SECONDS = 25, 30


def serve(options: ServeOptions, report: Callable[[str], None] = print) -> None:
    """Serves a model over HTTP until Ctrl-C or SIGTERM, then answers what it has accepted.

    `POST /predict` takes the bytes of an image file, or a multipart form with some, and returns
    JSON; `/` is a page for a person. docs/serving.md describes all of it.

    Args:
        options: Of the command. When the model is replaced, or a higher number appears in its
            folder, the new version takes over. Larger batches gain little on a processor; a GPU
            needs 32 and above.

    Raises:
        OSError: The address cannot be opened.
        ValueError: The model cannot be served.
    """
    import uvicorn

    from keras_vit_cli.model_files import name_of_model
    from keras_vit_cli.serve.app import make_app
    from keras_vit_cli.serve.connections import MAX_CONNECTIONS, FairConnection, Server
    from keras_vit_cli.serve.decoders import Decoders
    from keras_vit_cli.serve.service import Service
    from keras_vit_cli.serve.traces import tracing
    from keras_vit_cli.serve.versions import Versions

    path = options.model
    if hasattr(signal, "SIGHUP"):  # not on Windows
        # Means "load again", which the end of the process is not, while the model is loaded.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # The port is opened before the model: a taken one shows at once.
    count = min(8, available_processors())
    with (
        _listen(options.host, options.port) as listener,
        Decoders(count) as decoders,
        tracing(report),
    ):
        versions = Versions(path, options.batch_size, report)
        service = Service(versions, options, name_of_model(path), decoders)
        is_local = ipaddress.ip_address(listener.getsockname()[0]).is_loopback
        hosts = ["localhost", "127.0.0.1", "::1", "[::1]"] if is_local else ["*"]
        app = make_app(service, hosts, report if options.log_requests else None)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="on",
            http=FairConnection,
            ws="none",
            backlog=ACCEPTED_AT_ONCE,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=ANSWER_SECONDS,
        )

        _allow_open_files(2 * MAX_CONNECTIONS)

        def on_start() -> None:
            listener.listen(BACKLOG)  # uvicorn has made it ACCEPTED_AT_ONCE
            host, port = listener.getsockname()[:2]
            address = f"[{host}]" if ":" in host else host
            version = versions.version.name
            report(f"serving version {version} on http://{address}:{port} (Ctrl-C stops)")
            if not is_local:
                report("Anyone who reaches this address can use it: there is no password.")

        Server(config, on_start, service.stop, STOP_SECONDS).run_until_signal(listener)
        report("stopped")


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, or an OSError that names the address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise OSError(
            f"Cannot listen on {host}, port {port}: {error.strerror}. "
            "Give another --host or --port, or stop what uses it."
        ) from error
    return listener


def _allow_open_files(count: int) -> None:
    """Raises the limit on open files, often 1024, which connections would reach, where it may."""
    with suppress(ImportError, OSError, ValueError):  # Windows has neither
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and soft < count:
            most = count if hard == resource.RLIM_INFINITY else min(count, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
