//! A PersistentVolumeClaim: why it has no volume.

use super::{Case, Finding, Lookup, Verdict, deletion, last_event};
use crate::objects;

/// The provisioner of classes without one.
const NO_PROVISIONER: &str = "/no-provisioner";

/// Why a claim has no volume.
pub(super) fn explain(case: &Case, now: i64) -> Verdict {
    let claim = &case.object;
    let mut findings: Vec<Finding> = deletion(claim, now)
        .map(|finding| describe_used_claim(case, finding))
        .into_iter()
        .collect();
    let volume = objects::text_at(claim, "/spec/volumeName");
    match objects::text_at(claim, "/status/phase") {
        "Bound" if findings.is_empty() => {
            return Verdict::Well(format!("it is bound to the volume {volume}"));
        }
        "Bound" => {}
        "Lost" => findings.push(Finding::stuck(
            "its volume is gone",
            format!("its phase is Lost; it was bound to {volume}"),
            "its data may be lost: bring the PersistentVolume back, or delete the claim",
        )),
        _ => findings.extend(pending(case)),
    }
    Verdict::Wrong(findings)
}

/// A claim that pods use waits for them.
fn describe_used_claim(case: &Case, finding: Finding) -> Finding {
    let pods: Vec<&str> = case.pods.iter().map(|one| objects::name(&one.pod)).collect();
    if pods.is_empty() || !finding.evidence.contains("pvc-protection") {
        return finding;
    }
    let evidence = format!("{}; pods that use it: {}", finding.evidence, pods.join(", "));
    Finding {
        evidence,
        next: "end these pods: the claim goes after the last".to_owned(),
        ..finding
    }
}

fn pending(case: &Case) -> Vec<Finding> {
    let volume = objects::text_at(&case.object, "/spec/volumeName");
    if !volume.is_empty() {
        return vec![named_volume(case, volume)];
    }
    let class = objects::text_at(&case.object, "/spec/storageClassName");
    let failed = last_event(&case.events, &["ProvisioningFailed"]);
    match &case.class {
        Some(Lookup::Missing) => {
            return vec![Finding::stuck(
                format!(
                    "no volume of the class {class} fits it, and no storage class of this name exists to make one"
                ),
                failed.unwrap_or("spec.storageClassName names no class").to_owned(),
                "compare its size and access modes with the volumes of the class (orchctl get pv); or create the class, or make the claim again with one of: orchctl get storageclass",
            )];
        }
        Some(Lookup::Found(found)) => {
            let mode = objects::text_at(found, "/volumeBindingMode");
            if mode == "WaitForFirstConsumer" && case.pods.is_empty() {
                return vec![Finding::waiting(
                    "it waits for a pod that uses it",
                    format!(
                        "the class {class} has the volumeBindingMode {mode}, and no pod names the claim"
                    ),
                    "create the pod: its node decides where the volume is made",
                )];
            }
            if let Some(message) = failed {
                return vec![Finding::stuck(
                    "its volume cannot be made",
                    message,
                    format!("see to what the driver says; the class is {class}"),
                )];
            }
            return vec![of_provisioner(case, class, objects::text_at(found, "/provisioner"))];
        }
        Some(Lookup::Unread) | None => {}
    }
    if let Some(message) = failed {
        let next = "see to what the driver says";
        return vec![Finding::stuck("its volume cannot be made", message, next)];
    }
    if class.is_empty() {
        return vec![Finding::stuck(
            "no volume fits it, and it has no storage class that would make one",
            last_event(&case.events, &["FailedBinding"])
                .unwrap_or("spec.storageClassName is empty"),
            "create a PersistentVolume that fits, or make the claim again with a storageClassName",
        )];
    }
    vec![describe_pending_claim(case)]
}

/// Nothing has failed; someone has to make or bind the volume.
fn of_provisioner(case: &Case, class: &str, provisioner: &str) -> Finding {
    if provisioner.ends_with(NO_PROVISIONER) {
        return Finding::stuck(
            "no volume fits it, and its class makes none",
            format!("the class {class} has the provisioner {provisioner}"),
            "create a PersistentVolume of this class with its size and access modes",
        );
    }
    if let Some(message) = last_event(&case.events, &["ExternalProvisioning"]) {
        return Finding::waiting(
            "its driver has not made the volume yet",
            message,
            format!("look whether the driver {provisioner} runs"),
        );
    }
    describe_pending_claim(case)
}

fn describe_pending_claim(case: &Case) -> Finding {
    let last = case.events.last().map(super::reason_of).filter(|text| !text.is_empty());
    let evidence =
        last.unwrap_or_else(|| "it is Pending and nothing has happened to it".to_owned());
    let pods: Vec<&str> = case.pods.iter().map(|one| objects::name(&one.pod)).collect();
    let next = match pods.first() {
        Some(pod) => {
            let namespace = objects::namespace(&case.object);
            format!("look whether its pod gets a node: orchctl why -n {namespace} pod/{pod}")
        }
        None => "wait, or look whether the controller manager runs".to_owned(),
    };
    Finding::waiting("it is not bound yet", evidence, next)
}

/// The claim names its volume.
fn named_volume(case: &Case, name: &str) -> Finding {
    let claim = &case.object;
    match &case.volume {
        Some(Lookup::Missing) => Finding::stuck(
            format!("the volume {name} does not exist"),
            "spec.volumeName names it",
            "create the PersistentVolume, or make the claim again without volumeName",
        ),
        Some(Lookup::Found(volume)) => {
            let owner = ["/spec/claimRef/namespace", "/spec/claimRef/name"]
                .map(|pointer| objects::text_at(volume, pointer));
            let uid = objects::text_at(volume, "/spec/claimRef/uid");
            let own = [objects::namespace(claim), objects::name(claim)];
            let other_uid = !uid.is_empty() && uid != objects::text_at(claim, "/metadata/uid");
            if owner != ["", ""] && (owner != own || other_uid) {
                return Finding::stuck(
                    format!("the volume {name} belongs to another claim"),
                    format!(
                        "its claimRef is {}, phase {}",
                        owner.join("/"),
                        objects::text_at(volume, "/status/phase")
                    ),
                    "take the claimRef off the volume if its data may be used again, or choose another volume",
                );
            }
            let evidence = last_event(&case.events, &["VolumeMismatch", "FailedBinding"]);
            let evidence = evidence.unwrap_or("spec.volumeName names it, and it is not bound");
            Finding::stuck(
                format!("the volume {name} does not fit"),
                evidence,
                "compare size, access modes, storage class and volume mode of both",
            )
        }
        Some(Lookup::Unread) | None => describe_pending_claim(case),
    }
}
