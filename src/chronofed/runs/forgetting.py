"""Forgetting clients or samples of a finished run, with a proof that somebody else can check."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from chronofed.clients.cache import StateCache
from chronofed.clients.deletion import Deletion, apply_deletions, without
from chronofed.core.atomic import remove, write_atomic
from chronofed.core.config import Natural
from chronofed.core.errors import RunError, SpecError
from chronofed.core.types import Record
from chronofed.methods.backbones.base import SERVED
from chronofed.methods.backbones.frozen import Frozen
from chronofed.methods.heads.base import BY_CLIENT, SUMS, TOTALS
from chronofed.methods.method import Method
from chronofed.methods.wrappers.base import parts
from chronofed.runs.built import BuiltRun, build
from chronofed.runs.checkpoint import RunPoint, load_latest, save
from chronofed.runs.digests import Digests, digest
from chronofed.runs.directory import RunDirectory
from chronofed.runs.extension import record_sizes, records_of, settled
from chronofed.runs.load_spec import load_run
from chronofed.runs.model_files import leave_model
from chronofed.runs.restore import finished_summary
from chronofed.training.loop import Snapshot
from chronofed.training.loop import run as run_rounds

FORMAT = "chronofed-forgetting-1"
TOLERANCE = 1e-6
"""Largest difference from the model that never saw the data, relative to its largest parameter."""


class Proof(msgspec.Struct, forbid_unknown_fields=True):
    """The form of a proof.

    Attributes:
        format: Its version.
        run: Where the run was.
        specification: Fingerprint of the run's specification since.
        data: Digest of the run's data.
        clients: Clients that were forgotten.
        rows: Training samples that were forgotten.
        rounds: Rounds of the run.
        before: Digests of sums and model as they were.
        after: Digests of sums and model as they are.
        difference: How far the model is from one that never saw the data.
        tolerance: How far it may be.
        digest: Digest of all else.
    """

    format: str
    run: str
    specification: str
    data: str
    clients: list[Natural]
    rows: list[Natural]
    rounds: Natural
    before: dict[str, str]
    after: dict[str, str]
    difference: float
    tolerance: float
    digest: str


@dataclass(frozen=True, slots=True)
class Request:
    """Clients and samples to forget.

    Attributes:
        clients: Numbers of clients.
        rows: Numbers of training samples.
        data: Folder of data files.
    """

    clients: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    data: Path | None = None


def forget(directory: RunDirectory, request: Request) -> dict[str, Any]:
    """Take clients or samples out of a finished run, in place, and return the proof.

    Called again after a crash, it does the rest.

    Raises:
        SpecError: If the method cannot forget exactly; the message says what stays, and what to do.
        RunError: If the run is not finished, or its clients are elsewhere.
    """
    summary, _ = finished_summary(directory)
    if summary is None or directory.remote:
        why = "its clients are on Flower" if directory.remote else "it is not finished"
        raise RunError(f"{directory.path}: {why}; only finished runs of this machine can forget")
    with directory.lock():
        built = _load(directory, request.data)
        _check(directory, built, request, summary)
        before = _latest(directory)
        after = _without(built, before, request)
        wanted = with_deletion(built, request)
        proof = _proof(directory, wanted, before, after, request)
        if proof["difference"] > TOLERANCE:
            raise RunError(
                f"{directory.path}: the model differs by {proof['difference']:.1e} from one that never saw the "
                "data, so nothing was changed; were earlier data changed since?"
            )
        _commit(directory, wanted, after, summary)
    return proof


def verify(proof: dict[str, Any], directory: RunDirectory, data: Path | None = None) -> list[str]:
    """Check a proof against a run; return one line for everything that is wrong.

    The run is trained once more from what is left, which needs its data.
    """
    if proof.get("format") != FORMAT:
        return [f"not a proof of this version ({FORMAT})"]
    wrong = [] if proof.get("digest") == _signed(proof)["digest"] else ["the proof was changed"]
    built = _load(directory, data)
    request = Request(tuple(proof["clients"]), tuple(proof["rows"]))
    if _deletion(request) not in built.experiment.deletions:
        wrong.append("the run's specification does not delete what was to be forgotten")
    snapshot = _latest(directory)
    for name, found in _digests(snapshot).items():
        if found != proof["after"].get(name):
            wrong.append(f"{name}: not what the proof says")
    kept = snapshot.server.get(BY_CLIENT)
    here = [client for client in request.clients if kept is not None and client < len(kept)]
    if kept is None or bool(kept[here].any()):
        wrong.append("sums of forgotten clients are still there")
    difference = _difference(
        snapshot.params, _retrained(with_deletion(built, request), snapshot.round).params
    )
    if difference > TOLERANCE:
        wrong.append(f"the model differs by {difference:.1e} from one that never saw the data")
    return wrong


def reason(method: Method) -> str | None:
    """Say in one line why a method cannot forget exactly; ``None`` if it can."""
    trained = [type(p).__name__ for p in parts(method.backbone) if type(p) is not Frozen]
    if trained:
        return f"{trained[-1]} trains the whole model on everybody's data"
    if method.head is None or not method.head.by_client:
        return "the server did not keep the sums of single clients (method.head.by_client)"
    return None


def _check(
    directory: RunDirectory, built: BuiltRun, request: Request, summary: dict[str, Any]
) -> None:
    method, clients = built.experiment.method, built.scenario.clients
    unknown = [client for client in request.clients if client >= clients]
    if unknown:
        raise SpecError(f"--client: {unknown[0]}; the run has clients 0 to {clients - 1}")
    most = len(built.task.data.train)
    if any(row >= most for row in request.rows):
        raise SpecError(f"--row: {max(request.rows)}; the run has rows 0 to {most - 1}")
    why = reason(method)
    if why is not None:
        seconds = float(summary.get("seconds", 0.0))
        raise SpecError(
            f"{directory.path}: cannot forget exactly: {why}. What clients kept and what memories hold of them "
            "can be deleted (deletions in the specification); what the model learnt from them stays until it "
            f"is trained anew: add --retrain NEW, which takes {summary['rounds']} rounds, about "
            f"{seconds:.0f} s as before"
        )
    if request.rows and method.average == "clients":
        raise SpecError(
            "--row: needs average = 'samples'; with 'clients' sums are means, of which no part is known"
        )


def _load(directory: RunDirectory, data: Path | None) -> BuiltRun:
    return build(load_run(directory, data), data, settled=settled(directory))


def _latest(directory: RunDirectory) -> Snapshot:
    snapshot, complaints = load_latest(directory.checkpoints)
    if snapshot is None:
        raise RunError("; ".join(complaints) or f"{directory.path}: no checkpoint")
    return snapshot


def _deletion(request: Request) -> Deletion:
    return Deletion(0, tuple(sorted(request.rows)), tuple(sorted(request.clients)))


def with_deletion(built: BuiltRun, request: Request) -> BuiltRun:
    """Return the run without what is to be forgotten, from its first round on."""
    deletions, new = built.experiment.deletions, _deletion(request)
    every = deletions if new in deletions else (*deletions, new)
    return replace(built, experiment=msgspec.structs.replace(built.experiment, deletions=every))


def _without(built: BuiltRun, before: Snapshot, request: Request) -> Snapshot:
    """Return the snapshot without what is to be forgotten."""
    method, head = built.experiment.method, built.experiment.method.head
    assert head is not None
    server: Record = {name: t for name, t in before.server.items() if name != SERVED}
    gone = {row for deletion in built.experiment.deletions for row in deletion.rows}
    rows = [row for row in request.rows if row not in gone]
    for client, sums in _sums_of(built, before, rows):
        server = head.take_back(server, client, sums)
    server = method.serve(method.composed.forget(server, request.clients))
    states = StateCache()
    for client in before.client_states:
        states[client] = before.client_states[client]
    apply_deletions(states, [_deletion(request)])
    return replace(before, server=server, client_states=states)


def _sums_of(built: BuiltRun, before: Snapshot, rows: Sequence[int]) -> list[tuple[int, Tensor]]:
    """Return what some samples added to the sums of their clients, as often as they came."""
    if not rows:
        return []
    head, found = built.experiment.method.head, []
    assert head is not None
    objective = built.task.objective()
    wanted = torch.tensor(rows)
    for t in range(before.round):
        plan = without(built.scenario.at(t), built.experiment.deletions)
        for client, visit in plan.visits.items():
            held = torch.from_numpy(visit.indices)
            some = held[torch.isin(held, wanted)]
            if len(some):
                samples = built.task.samples(some.numpy())
                sums = head.observe(objective, before.server, before.buffers, samples, False)
                found.append((client, sums))
    return found


def _retrained(built: BuiltRun, rounds: int) -> Snapshot:
    """Train from the beginning, with what the specification leaves."""
    experiment = built.experiment
    *_, last = run_rounds(
        experiment.method,
        built.scenario,
        built.task,
        rounds=rounds,
        train=experiment.train,
        seed=experiment.seed,
        start=built.first_snapshot(),
        deletions=experiment.deletions,
        checked=True,
    )
    return last


def _difference(one: Tensor, other: Tensor) -> float:
    """Return the largest difference, relative to the largest parameter if that is above 1."""
    size = max(1.0, float(other.double().abs().max()))
    return float((one.double() - other.double()).abs().max()) / size


def _proof(
    directory: RunDirectory, wanted: BuiltRun, before: Snapshot, after: Snapshot, request: Request
) -> dict[str, Any]:
    retrained = _retrained(wanted, after.round)
    return _signed(
        {
            "format": FORMAT,
            "run": str(directory.path.resolve()),
            "specification": wanted.experiment.fingerprint(),
            "data": wanted.data_digest,
            "clients": sorted(request.clients),
            "rows": sorted(request.rows),
            "rounds": after.round,
            "before": _digests(before),
            "after": _digests(after),
            "difference": _difference(after.params, retrained.params),
            "tolerance": TOLERANCE,
        }
    )


def _signed(proof: dict[str, Any]) -> dict[str, Any]:
    """Return the proof with a digest of all else that it says."""
    rest = {name: value for name, value in proof.items() if name != "digest"}
    return {**rest, "digest": digest(json.dumps(rest, sort_keys=True).encode())}


def _digests(snapshot: Snapshot) -> dict[str, str]:
    """Return digests of the sums, of those of single clients, and of the model."""
    server = snapshot.server
    tensors = {
        SUMS: server.get(TOTALS),
        BY_CLIENT: server.get(BY_CLIENT),
        "model": snapshot.params,
    }
    return {
        name: hashlib.blake2b(t.cpu().contiguous().numpy().tobytes(), digest_size=16).hexdigest()
        for name, t in tensors.items()
        if t is not None
    }


def _commit(
    directory: RunDirectory, built: BuiltRun, after: Snapshot, summary: dict[str, Any]
) -> None:
    """Write everything down; the old sums go with the old checkpoints."""
    records = records_of(directory, record_sizes(directory, after.round, open_again=False))
    save(directory.checkpoints, after, 1, RunPoint(records, built.identity), after.round)
    remove(directory.path / "summary.json")
    spec = built.experiment.resolved().encode()
    write_atomic(directory.spec_path, spec)
    Digests(built.identity, {directory.spec_path.name: digest(spec)}).write(directory.path)
    leave_model(directory, built, summary)
    directory.finish(summary)
