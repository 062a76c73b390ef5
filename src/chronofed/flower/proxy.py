"""The reverse proxy in front of a SuperLink: nginx, configured and checked by this program.

A SuperLink serves nodes, the operator (start an app, list runs) and apps on one port, and only nodes must prove
who they are. So the SuperLink listens on the loopback interface, and the proxy publishes the calls of nodes,
one by one, with TLS, for nodes whose key is on a list.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from pwd import getpwuid
from types import MappingProxyType

from chronofed.core.atomic import write_atomic
from chronofed.core.errors import RunError
from chronofed.flower.keys import CA, CERTIFICATE, KEY
from chronofed.flower.processes import LOOPBACK

NODE_CALLS = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "pull-object",
    "push-object",
    "confirm-message-received",
)
"""Calls of a node that has a key; registering and unregistering are the operator's."""
HEARTBEAT, START = "/v1/fleet/send-node-heartbeat", "/v1/fleet/activate-node"
CONFIGURATION, SEEN_LOG, ERROR_LOG = "nginx.conf", "seen.log", "nginx-error.log"
BODY_MB, PART_MB, TREE_MB = 1, 6, 2
"""Largest request in megabytes: of most calls, of a part of a reply, and of the list of its parts.

Flower sends arrays in parts of 5 MB."""
LARGER_CALLS = {"push-object": PART_MB, "push-messages": TREE_MB}
PUSHED_LOG = "pushed.log"
CONNECTIONS = 16
"""Connections of a node at the same time; a SuperNode has about four."""

_TEMPLATE = """\
# Written by chronofed; changes are lost.
daemon off;
{user}worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/{error_log} warn;
# Requests of before a change of the list of nodes end.
worker_shutdown_timeout 60s;
events {{ worker_connections 2048; }}
http {{
  client_body_temp_path {folder}/temporary;
  proxy_temp_path {folder}/temporary;
  fastcgi_temp_path {folder}/temporary;
  uwsgi_temp_path {folder}/temporary;
  scgi_temp_path {folder}/temporary;
  server_tokens off;
  # Base64 of a public key has about 300 characters.
  map_hash_bucket_size 1024;
  map_hash_max_size 16384;
  map $http_flwr_public_key $node {{
    default "";
{nodes}
  }}
  map $http_flwr_public_key $number {{
    default "";
{numbers}
  }}
  # What the operator wants to know: starts and heartbeats of nodes, and every request that is refused.
  map $status:$request_uri $of_interest {{
    default 0;
    "200:{heartbeat}" 1;
    "200:{start}" 1;
    "~^4" 1;
  }}
  log_format seen escape=json '{{"time":$msec,"node":"$node","address":"$remote_addr",'
    '"status":$status,"request":"$request_method $request_uri"}}';
  access_log {folder}/{seen_log} seen if=$of_interest;
  # How much each node sends; the hub refuses one that sends far more than its orders allow.
  map $request_uri $of_weight {{
    default 0;
    "~^/v1/fleet/push-" 1;
  }}
  log_format pushed escape=json '{{"node":"$node","bytes":$request_length}}';
  access_log {folder}/{pushed_log} pushed if=$of_weight;
  limit_conn_zone $binary_remote_addr zone=addresses:4m;
  limit_conn_zone $node zone=nodes:4m;
  server {{
    listen {listen} ssl;
    ssl_certificate {certificate};
    ssl_certificate_key {key};
    ssl_protocols TLSv1.2 TLSv1.3;
    # A request that comes drop by drop costs a connection here, and nothing in the SuperLink.
    client_header_timeout 15s;
    client_body_timeout 30s;
    send_timeout 60s;
    client_max_body_size {body_mb}m;
    large_client_header_buffers 4 8k;
    limit_conn addresses {max_connections};
    limit_conn nodes {connections};
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_set_header Host $host;
    proxy_read_timeout 300s;
    # The SuperLink has a certificate of its own for the loopback interface.
    proxy_ssl_trusted_certificate {authority};
    proxy_ssl_verify on;
    proxy_ssl_name localhost;
    proxy_ssl_session_reuse on;
    location / {{ return 404; }}
    location @direct {{ proxy_pass https://{host}:{port}; }}
{locations}
  }}
}}
"""
# 401 is the SuperLink's own answer to a wrong key: a SuperNode ends on it, and on others it may hang.
_LOCATION = """\
    location = /v1/fleet/{call} {{
      if ($node = "") {{ return 401; }}
      if ($request_method != POST) {{ return 405; }}
      {more}{to}
    }}"""
WAITING_CALL = "pull-messages"
"""The call in which nodes wait for orders, at the relay."""
_DIRECT = "proxy_pass https://{host}:{port}/v1/fleet/{call};"
_WAITING = """\
proxy_pass http://unix:{waiting}:/v1/fleet/{call};
      # A node that is not there any longer must not keep its place.
      proxy_read_timeout 60s;
      proxy_set_header Connection "";
      proxy_set_header Host $host;
      # Whose answer may be there now; a node cannot say this of another one.
      proxy_set_header Chronofed-Node $number;
      error_page 502 504 = @direct;"""


def configuration(
    folder: Path,
    keys: Path,
    listen: str,
    link_port: int,
    nodes: Mapping[str, str],
    waiting: Path,
    numbers: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return the configuration of nginx.

    Args:
        folder: Folder of its logs and temporary files.
        keys: Folder that :func:`~chronofed.flower.keys.make_keys` wrote.
        listen: Address and port to publish.
        link_port: Port of the SuperLink on this machine.
        nodes: Name of every node that may join, by the header that holds its public key.
        waiting: Address of the relay (:mod:`~chronofed.flower.relay`), a Unix socket.
        numbers: Flower's number of every node, by the same header.
    """
    place = {"host": LOOPBACK, "port": link_port, "waiting": _quoted(waiting)}
    names, known = (
        "\n".join(f'    "{header}" "{value}";' for header, value in sorted(each.items()))
        for each in (nodes, numbers)
    )
    to = {call: (_WAITING if call == WAITING_CALL else _DIRECT) for call in NODE_CALLS}
    more = {c: f"client_max_body_size {mb}m;\n      " for c, mb in LARGER_CALLS.items()}
    calls = (
        _LOCATION.format(call=c, more=more.get(c, ""), to=to[c].format(call=c, **place))
        for c in NODE_CALLS
    )
    # Started by root, nginx would let another user do the work, who cannot write to the hub's folder.
    user = f"user {getpwuid(0).pw_name};\n" if os.geteuid() == 0 else ""
    return _TEMPLATE.format(
        user=user,
        folder=_quoted(folder),
        authority=_quoted(keys / CA),
        certificate=_quoted(keys / CERTIFICATE),
        key=_quoted(keys / KEY),
        error_log=ERROR_LOG,
        seen_log=SEEN_LOG,
        heartbeat=HEARTBEAT,
        start=START,
        pushed_log=PUSHED_LOG,
        body_mb=BODY_MB,
        connections=CONNECTIONS,
        # Several nodes may share an address, and each holds a few connections.
        max_connections=1024,
        listen=listen,
        host=LOOPBACK,
        port=link_port,
        nodes=names,
        numbers=known,
        locations="\n".join(calls),
    )


def write_checked(folder: Path, content: str) -> list[str]:
    """Write a configuration, let nginx check it, and return the command that starts nginx with it.

    Raises:
        RunError: If nginx is missing, or refuses the configuration; the old configuration stays then.
    """
    program = find_nginx()
    (folder / "temporary").mkdir(parents=True, exist_ok=True, mode=0o700)
    new = folder / f"new-{CONFIGURATION}"
    write_atomic(new, content.encode())
    new.chmod(0o600)
    start = [program, "-p", str(folder), "-e", str(folder / ERROR_LOG), "-c"]
    checked = subprocess.run([*start, str(new), "-t", "-q"], capture_output=True, text=True)
    if checked.returncode != 0:
        reason = next(iter(checked.stderr.strip().splitlines()[-1:]), "no reason given")
        raise RunError(f"nginx refuses {new}: {reason}")
    new.replace(folder / CONFIGURATION)
    return [*start, str(folder / CONFIGURATION)]


def reload(folder: Path) -> None:
    """Let a running nginx read its configuration again; open connections end by themselves."""
    _signal(folder, signal.SIGHUP)


def rotate(folder: Path, max_bytes: int = 5_000_000) -> None:
    """Start new logs of heartbeats and of what was sent if the present ones are large; one older is kept."""
    large = [
        log
        for log in (folder / SEEN_LOG, folder / PUSHED_LOG)
        if log.exists() and log.stat().st_size > max_bytes
    ]
    for log in large:
        log.replace(log.with_suffix(".old"))
    if large:
        _signal(folder, signal.SIGUSR1)


def find_nginx() -> str:
    """Find nginx.

    Raises:
        RunError: If it is not installed.
    """
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    found = shutil.which("nginx", path=path)
    if found is None:
        raise RunError("nginx is missing: install it, on Debian with: apt install nginx-light")
    return found


def _signal(folder: Path, number: int) -> None:
    try:
        os.kill(int((folder / "nginx.pid").read_text()), number)
    except (OSError, ValueError) as error:
        raise RunError(f"nginx does not run in {folder}; see {folder / ERROR_LOG}") from error


def _quoted(path: Path) -> str:
    """Return a path for nginx.

    Raises:
        RunError: If it has characters that mean something else there.
    """
    text = str(path)
    if any(c in text for c in " \t\n;{}\"'$\\"):
        raise RunError(f"{path}: nginx needs a path without blanks, quotes, $ and ;")
    return text
