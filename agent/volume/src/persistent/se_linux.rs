//! Mounts with the SELinux context of the pod, which saves relabelling every file. Only if the driver supports it and no other
//! pod uses the volume.

use proto_api::core::v1::{Container, Pod, SELinuxOptions};

use super::{Backing, PersistentSource};

/// The access mode that reserves a volume for one pod.
const ALONE: &str = "ReadWriteOncePod";
/// User, role and type of container files in container policies.
const OWNED: &str = "system_u:object_r:container_file_t";

/// The mount option; `None` if it cannot be used, in which case the runtime relabels. For hosts with SELinux.
#[must_use]
pub fn mount_option(pod: &Pod, volume: &PersistentSource) -> Option<String> {
    let Backing::Csi(csi) = &volume.backing else { return None };
    if !csi.se_linux_mount || volume.block || csi.access_modes != [ALONE] {
        return None;
    }
    let level = level(pod, &volume.name)?;
    Some(format!("context=\"{OWNED}:{level}\""))
}

/// The level of all containers that mount the volume; `None` if there is none or if they differ.
fn level(pod: &Pod, volume: &str) -> Option<String> {
    let of_pod = pod.spec.security_context.as_ref().and_then(|c| c.se_linux_options.as_ref());
    let own = |container: &Container| -> Option<SELinuxOptions> {
        let own = container.security_context.as_ref().and_then(|c| c.se_linux_options.as_ref());
        own.or(of_pod).cloned()
    };
    let all = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    let users = all.filter(|container| container.volume_mounts.iter().any(|m| m.name == volume));
    let mut levels = users.map(|container| own(container).map(|o| o.level).unwrap_or_default());
    let first = levels.next().filter(|level| !level.is_empty())?;
    // A quote would end the option's value.
    let plain = first.chars().all(|c| c.is_ascii_alphanumeric() || ":,.-".contains(c));
    (plain && levels.all(|level| level == first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::persistent::CsiVolume;

    fn pod(text: &str) -> Pod {
        let spec = serde_json::from_value(proto_api::yaml::parse(text).unwrap()).unwrap();
        Pod { spec, ..Pod::default() }
    }

    fn volume(can: bool, mode: &str) -> PersistentSource {
        let csi = CsiVolume {
            se_linux_mount: can,
            access_modes: vec![mode.into()],
            ..CsiVolume::default()
        };
        PersistentSource {
            name: "v".into(),
            spec_name: "pv".into(),
            backing: Backing::Csi(Box::new(csi)),
            read_only: false,
            block: false,
            mount_options: Vec::new(),
            grow_to: None,
            claim: None,
        }
    }

    #[test]
    fn a_volume_of_one_pod_at_one_level_is_mounted_with_it() {
        let own = "securityContext: {seLinuxOptions: {level: 's0:c1,c2'}}";
        let mounts = "volumeMounts: [{name: v, mountPath: /v}]";
        let other = "securityContext: {seLinuxOptions: {level: s0}}";
        let one = format!("{{{own}, containers: [{{name: a, {mounts}}}, {{name: b, {other}}}]}}");
        let two = format!(
            "{{{own}, containers: [{{name: a, {mounts}}}, {{name: b, {other}, {mounts}}}]}}"
        );
        let none = format!("{{containers: [{{name: a, {mounts}}}]}}");
        let odd = one.replace("s0:c1,c2", "s0\\\"x");
        let option = "context=\"system_u:object_r:container_file_t:s0:c1,c2\"";
        let cases = [
            (&one, volume(true, ALONE), Some(option)),
            (&one, volume(false, ALONE), None),
            (&one, volume(true, "ReadWriteOnce"), None),
            (&two, volume(true, ALONE), None),
            (&none, volume(true, ALONE), None),
            (&odd, volume(true, ALONE), None),
        ];
        for (text, volume, expect) in cases {
            assert_eq!(mount_option(&pod(text), &volume).as_deref(), expect, "{text}");
        }
    }
}
