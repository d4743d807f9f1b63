"""net.gid: RDMA transfers end at once with error 12 (no answer): the address that the device uses (its GID) leads nowhere.

What is seen: every pair with the host fails with `Got completion from peer ... with error 12`, pings work. Usual reasons: on RoCE the GID
index points to a link-local or RoCE v1 entry (NCCL issues 426 and 769), all addresses are IPv6 and the index fell back to 0 (uccl PR 803).

How it is told apart: error 12 of a completion is "retry exceeded" (ibv_wc_status, libibverbs). A link-local GID (fe80::) in the same line
makes it supported; without one a link that is down looks alike, and it stays a hypothesis.
"""

from __future__ import annotations

from playbooks.case import Case
from playbooks.check import Check, Need, Result, passed
from playbooks.cross_node.channels import facts
from playbooks.document import Remedy
from playbooks.finding import finding, subject

ID = "net.gid"
RETRY_EXCEEDED = "12"
LOG = Need(
    "lines of the collective library",
    "library_fact",
    1,
    "start with NCCL_DEBUG=INFO, then `workbench import` the logs of all hosts",
    where="name <> 'backend'",  # which a fabric test says of itself
    time="",
)


def test(case: Case) -> Result:
    failed = sorted(host for host, codes in facts(case, "completion-error").items() if RETRY_EXCEEDED in codes)
    if not failed:
        return passed("no transfer ended with error 12", 0, 0, "hosts")
    gids = facts(case, "local-gid")
    local = sorted(host for host in failed if any(gid.lower().startswith("fe80") for gid in gids.get(host, ())))
    hosts = local or failed
    made = finding(
        case,
        ID,
        "error" if local else "warning",
        subject("host", ",".join(hosts), hosts=hosts),
        f"RDMA transfers of {', '.join(failed)} get no answer",
        f"Transfers of {', '.join(failed)} ended with error 12 (retry exceeded)."
        + (f" {', '.join(local)} sends from a link-local address (fe80::), which leads nowhere." if local else ""),
        0.8 if local else 0.4,
        "supported" if local else "hypothesis",
        evidence=(
            case.sql(
                f"SELECT count(DISTINCT host) AS n FROM library_fact WHERE name = 'completion-error' AND value = '{RETRY_EXCEEDED}'",
                0,
                "hosts",
                "with error 12",
            ),
        ),
        remedy=(
            Remedy(
                text="Use the GID index of the RoCE v2 entry that holds the interface's own address, on every host.",
                config={"NCCL_IB_GID_INDEX": "index of the RoCE v2 entry"},
                risk="medium: the job restarts",
                command="show_gids; ibv_devinfo -v | grep GID",
                verify="workbench import the new log; workbench diagnose cross-node-throughput",
            ),
        ),
    )
    return Result("fail" if local else "warn", f"error 12 on {', '.join(failed)}", len(failed), 0, "hosts", (made,))


CHECK = Check(ID, "RDMA addresses that lead nowhere", mandatory=False, cost=1, test=test, needs=(LOG,), page=__doc__ or "")
