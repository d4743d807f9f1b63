"""Rung 1: this machine and this installation, against the environment in which all was well."""

from __future__ import annotations

from fnmatch import fnmatchcase

from probes.doctor import examine
from probes.fingerprint import diff
from probes.traffic.client import base_url, is_loopback
from traces.run import runs_root
from workbench.bringup.document import Evidence
from workbench.bringup.record import keep
from workbench.bringup.rung import Outcome, Rung, failed, passed, skipped
from workbench.bringup.site import Site, steady

FINGERPRINT = "fingerprint.json"
HOST = {"os", "cpu", "numa", "memory", "shm", "network", "devices"}  # sections that are the same for every process of a host
SHOWN = 12  # differences; the rest is counted


def climb(site: Site) -> Outcome:
    if site.options.endpoint is not None and not is_loopback(base_url(site.options.endpoint)):
        return skipped("the engine runs on another machine: take `workbench fingerprint --json` there, and compare with --diff")
    facts = site.facts()
    keep(site.folder, FINGERPRINT, facts)
    checks = list(examine(runs_root(), deep=site.options.endpoint is None))
    bad = [check for check in checks if check.status == "fail"]
    if bad:
        evidence = [Evidence(check.name, check.observed) for check in bad]
        return failed(f"this installation is not fit: {', '.join(check.name for check in bad)}", *evidence, next=("workbench doctor",))
    warned = [Evidence(f"warning: {check.name}", check.observed) for check in checks if check.status == "warn"]
    outside = site.options.endpoint is not None
    if outside:
        warned.append(Evidence("not seen", "the engine's own packages and variables: take `workbench fingerprint` in its environment"))
    baseline = site.options.baseline
    if baseline is None:
        told = f"{len(checks)} checks of the installation, none failed. No baseline was given (--baseline); this one is in {FINGERPRINT}"
        return passed(told, *warned)
    sections = {key for key in baseline.keys() & facts.keys() if isinstance(baseline[key], dict) and (key in HOST or not outside)}
    if not sections - {"host", "model"}:
        return failed("the baseline holds no facts of an environment", next=("workbench fingerprint --json > FILE",))
    # A baseline that was taken without torch, or without a model, says nothing about them.
    differences = [
        one
        for one in diff({key: baseline[key] for key in sections}, {key: facts[key] for key in sections})
        if steady(one.key)
    ]
    accepted = [one for one in differences if any(fnmatchcase(one.key, pattern) for pattern in site.options.accepted)]
    open_ = [one for one in differences if one not in accepted]
    shown = [Evidence(one.key, str(one.b), str(one.a)) for one in open_[:SHOWN]]
    noted = [Evidence(f"accepted: {one.key}", str(one.b), str(one.a)) for one in accepted]
    if open_:
        told = f"{len(open_)} facts differ from the baseline: {', '.join(one.key for one in open_[:3])}"
        again = "make them equal, or say --accept KEY for each that is meant to differ"
        return failed(told, *shown, *noted, *warned, next=(again, "workbench fingerprint --diff BASELINE " + FINGERPRINT))
    return passed(f"equal to the baseline in {', '.join(sorted(sections))}, but for {len(accepted)} accepted facts", *noted, *warned)


RUNG = Rung("environment", "this machine and its software", ("environment", "baseline"), climb)
