"""The user data of a rented machine: dead-man timer first, then the lease's guard.

Deterministic: the same task gives the same text, so that a launch can be repeated.
"""

from __future__ import annotations

import base64
import gzip

from hybrid.lease.spec import LeaseSpec, guard_source, object_store_bytes
from hybrid.ports import LeaseTask

#: AWS takes no more.
LIMIT_BYTES = 16 * 1024

_TEMPLATE = """\
#!/bin/bash
# Written by Hybrid for lease @LEASE@. Every step is in the boot log.
set -eu
log() { echo "$(date -u +%H:%M:%SZ) $*"; }
export HYBRID_MACHINE_DIR="${HYBRID_MACHINE_DIR:-/var/lib/hybrid}"
HYBRID_POWEROFF="${HYBRID_POWEROFF:-shutdown -h now}"
HYBRID_PYTHON="${HYBRID_PYTHON:-@PYTHON@}"

log "dead-man timer: power off in $((@EXPIRY@ - $(date +%s))) s"
(
  while [ "$(date +%s)" -lt @EXPIRY@ ]; do sleep 5; done
  eval "$HYBRID_POWEROFF"
) >/dev/null 2>&1 &

LEASE_DIR="$HYBRID_MACHINE_DIR/lease"
mkdir -p "$LEASE_DIR"
log "writing the guard"
base64 -d <<'GUARD' | gzip -d > "$LEASE_DIR/guard.py"
@GUARD@
GUARD
base64 -d <<'SPEC' > "$LEASE_DIR/spec.template"
@SPEC@
SPEC
chmod 700 "$LEASE_DIR"
"$HYBRID_PYTHON" - "$LEASE_DIR" <<'FILL'
import json, os, sys
where = sys.argv[1]
spec = json.load(open(where + "/spec.template"))
spec["node_ip"] = os.environ.get("HYBRID_MACHINE_ADDRESS", "127.0.0.2")
spec["python"] = sys.executable
json.dump(spec, open(where + "/spec.json", "w"), sort_keys=True)
FILL
log "starting Ray"
exec "$HYBRID_PYTHON" "$LEASE_DIR/guard.py" "$LEASE_DIR"
"""


class UserDataTooLarge(Exception):
    """The rendered user data is over the limit of 16 KiB that clouds set."""


def render(task: LeaseTask, orchestrator_id: str, python: str = "python3") -> str:
    """The script for the one machine of a single-node lease. Needs `task.offer` and
    `task.hard_end_at`."""
    if task.offer is None or task.hard_end_at is None:
        raise ValueError(f"lease {task.id} is no cloud lease: it has no offer or no hard end")
    spec = LeaseSpec(
        lease_id=task.id,
        orchestrator_id=orchestrator_id,
        head=True,
        node_ip="",
        head_address=None,
        cards=None,
        gpus=task.offer.gpus,
        cpus=task.offer.cpus,
        memory_bytes=0,
        token=task.cluster_token,
        expires_at=task.hard_end_at.timestamp(),
        python=python,
        object_store_bytes=object_store_bytes(0),
        resources=dict(task.gang.resources),
    )
    packed = gzip.compress(guard_source().encode(), mtime=0)
    values = {
        "LEASE": task.id,
        "PYTHON": python,
        "EXPIRY": str(int(task.hard_end_at.timestamp())),
        "GUARD": base64.encodebytes(packed).decode().strip(),
        "SPEC": base64.encodebytes(spec.to_json().encode()).decode().strip(),
    }
    text = _TEMPLATE
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    if len(text.encode()) > LIMIT_BYTES:
        raise UserDataTooLarge(f"user data of {task.id} has {len(text.encode())} bytes")
    return text
