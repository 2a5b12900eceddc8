//! A PersistentVolume: why no claim has it, or why it does not go.

use super::{Case, Finding, Verdict, deletion, last_event, reason_of};
use crate::objects;

/// Why a volume is of no use.
pub(super) fn explain(case: &Case, now: i64) -> Verdict {
    let volume = &case.object;
    let [claim_namespace, claim_name] = ["namespace", "name"]
        .map(|field| objects::text_at(volume, &format!("/spec/claimRef/{field}")));
    let claim = format!("{claim_namespace}/{claim_name}");
    let phase = objects::text_at(volume, "/status/phase");
    let mut findings = Vec::new();
    if let Some(finding) = deletion(volume, now) {
        let is_bound = phase == "Bound" && finding.evidence.contains("pv-protection");
        findings.push(match is_bound {
            true => Finding {
                evidence: format!("{}; it is bound to the claim {claim}", finding.evidence),
                next: "delete the claim first: the volume goes after it".to_owned(),
                ..finding
            },
            false => finding,
        });
    }
    match phase {
        "Bound" if findings.is_empty() => {
            return Verdict::Well(format!("it is bound to the claim {claim}"));
        }
        "Available" if findings.is_empty() && claim_name.is_empty() => {
            return Verdict::Well("it is free for a claim".to_owned());
        }
        "Available" if findings.is_empty() => {
            return Verdict::Well(format!(
                "it is reserved for the claim {claim}, which is not bound to it"
            ));
        }
        "Released" => findings.push(released(case, &claim)),
        "Failed" => findings.push(Finding::stuck(
            "it could not be reclaimed",
            volume.pointer("/status").map(reason_of).unwrap_or_default(),
            "see to what the driver says; delete the volume by hand once its storage is gone",
        )),
        "Pending" | "" => findings.push(Finding::waiting(
            "its phase is not known yet",
            format!("status.phase is {phase:?}"),
            "wait, or look whether the controller manager runs",
        )),
        _ => {}
    }
    Verdict::Wrong(findings)
}

/// Its claim is gone.
fn released(case: &Case, claim: &str) -> Finding {
    let policy = objects::text_at(&case.object, "/spec/persistentVolumeReclaimPolicy");
    let failed = last_event(&case.events, &["VolumeFailedDelete"]);
    if let Some(message) = failed.filter(|_| policy == "Delete") {
        let next = "see to what the driver says; it is tried again";
        return Finding::stuck("its storage cannot be deleted", message, next);
    }
    if policy == "Delete" {
        let driver = objects::text_at(&case.object, "/spec/csi/driver");
        return Finding::waiting(
            "its storage is being deleted",
            format!("the claim {claim} is gone, and persistentVolumeReclaimPolicy is Delete"),
            match driver {
                "" => "wait, or see its events: orchctl describe pv".to_owned(),
                driver => format!("wait, or look whether the driver {driver} runs"),
            },
        );
    }
    Finding::stuck(
        "no claim can have it: it keeps the data of a claim that is gone",
        format!("the claim {claim} is gone, and persistentVolumeReclaimPolicy is {policy}"),
        format!(
            "save its data, then delete it; or take the claimRef off to give it to another claim: orchctl patch pv {} --type=json -p '[{{\"op\":\"remove\",\"path\":\"/spec/claimRef\"}}]'",
            objects::name(&case.object)
        ),
    )
}
