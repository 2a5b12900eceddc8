//! Translation of a container's volume mounts and devices to mounts of the runtime.

use std::collections::BTreeMap;

use proto_api::core::v1::{Container, VolumeMount};

use crate::expand::{expand, variables_of};
use crate::spec::{DeviceNode, Mount, Propagation};
use crate::translate_error::TranslateError;

/// A volume that is set up on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeOnHost {
    /// Absolute path: a directory or file, or the node of a block device.
    pub path: String,
    /// Whether it is read-only in every container, whatever the mount says.
    pub read_only: bool,
    /// Whether the agent created it, so that it may be relabelled for SELinux.
    pub managed: bool,
    /// Whether it is a block device.
    pub block: bool,
    /// Whether it is checked when it is bound, so that containers get it only through a bind mount of the agent.
    pub checked: bool,
    /// Whether `subPath` mounts of it are refreshed, as its pod requested.
    pub follows: bool,
}

/// Whether a read-only mount includes the mounts below it (`recursiveReadOnly`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllReadOnly {
    /// Required.
    Enabled,
    /// If the kernel supports it.
    IfPossible,
}

/// A mount that a container gets through a bind mount of the agent: part of a volume, or a whole volume that has no path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundPart<'a> {
    /// Index of the mount in the container.
    pub index: usize,
    /// Name of the volume.
    pub volume: &'a str,
    /// Path below the volume's root.
    pub path: String,
    /// Whether mounts below are read-only too.
    pub all_read_only: Option<AllReadOnly>,
    /// Whether it is refreshed while containers use it.
    pub follows: bool,
}

/// The mounts that need a bind mount of the agent: parts of volumes, volumes checked when bound, and recursively read-only
/// mounts. Variables in `subPathExpr` are expanded from the container's environment.
///
/// # Errors
/// A variable is not in the environment, or a path leads upwards.
pub fn sub_paths<'a>(
    container: &'a Container,
    env: &[(String, String)],
    volumes: &BTreeMap<String, VolumeOnHost>,
) -> Result<Vec<BoundPart<'a>>, TranslateError> {
    let mut found = Vec::new();
    let expressions = container.volume_mounts.iter().map(|mount| &mount.sub_path_expr);
    let known = variables_of(expressions, env);
    for (index, mount) in container.volume_mounts.iter().enumerate() {
        let failed = || TranslateError::SubPath {
            mount: mount.name.clone(),
            container: container.name.clone(),
        };
        let path = if mount.sub_path_expr.is_empty() {
            mount.sub_path.clone()
        } else {
            expand_path(&mount.sub_path_expr, &known).ok_or_else(failed)?
        };
        let checked = volumes.get(&mount.name).is_some_and(|volume| volume.checked);
        let all_read_only = all_read_only(mount);
        let bound = all_read_only.is_some() || (checked && !propagates(mount));
        if path.is_empty() && !bound {
            continue;
        }
        if path.starts_with('/') || path.split('/').any(|name| name == "..") {
            return Err(failed());
        }
        let follows = volumes.get(&mount.name).is_some_and(|volume| is_refreshed(mount, volume));
        found.push(BoundPart { index, volume: mount.name.as_str(), path, all_read_only, follows });
    }
    Ok(found)
}

/// `recursiveReadOnly` of a mount; the API accepts it only for read-only mounts without propagation.
fn all_read_only(mount: &VolumeMount) -> Option<AllReadOnly> {
    let wanted = match mount.recursive_read_only.as_deref() {
        Some("Enabled") => AllReadOnly::Enabled,
        Some("IfPossible") => AllReadOnly::IfPossible,
        _ => return None,
    };
    (mount.read_only && !propagates(mount)).then_some(wanted)
}

/// Whether later mounts propagate through the mount. A bind mount of the agent would be one more place they propagate to.
fn propagates(mount: &VolumeMount) -> bool {
    matches!(mount.mount_propagation.as_deref(), Some("HostToContainer" | "Bidirectional"))
}

/// Whether a mount is refreshed while a container uses it: a fixed `subPath` of a volume whose pod requested it. A recursively
/// read-only mount receives no propagation.
pub fn is_refreshed(mount: &VolumeMount, volume: &VolumeOnHost) -> bool {
    volume.follows
        && !mount.sub_path.is_empty()
        && mount.sub_path_expr.is_empty()
        && mount.mount_propagation.as_deref().is_none_or(|propagation| propagation == "None")
        && all_read_only(mount).is_none()
}

/// Longest path below a volume in bytes (`PATH_MAX` without the terminating NUL).
const PATH_BYTES_MAX: usize = 4095;

/// Expands variables in `text`; `None` if one is unknown or the result is too long for a path.
fn expand_path(text: &str, env: &BTreeMap<&str, &str>) -> Option<String> {
    let all_known = std::cell::Cell::new(true);
    let value = expand(text, PATH_BYTES_MAX, |name| {
        let known = env.get(name).copied();
        all_known.set(all_known.get() && known.is_some());
        known
    });
    value.filter(|_| all_known.get())
}

/// The bind mounts of a container. `sub_paths` holds the paths of the mounts returned by [`sub_paths`].
///
/// # Errors
/// A volume or a part of one is missing.
pub(crate) fn mounts(
    container: &Container,
    volumes: &BTreeMap<String, VolumeOnHost>,
    sub_paths: &BTreeMap<usize, String>,
) -> Result<Vec<Mount>, TranslateError> {
    let mount = |(index, wanted): (usize, &VolumeMount)| {
        let missing = || TranslateError::NoVolume(wanted.name.clone());
        let volume = volumes.get(&wanted.name).ok_or_else(missing)?;
        let part = !wanted.sub_path.is_empty() || !wanted.sub_path_expr.is_empty();
        let host_path = match sub_paths.get(&index) {
            Some(path) => path,
            // A `subPathExpr` may expand to nothing, which means the whole volume.
            None if !part || wanted.sub_path.is_empty() => &volume.path,
            None => return Err(missing()),
        };
        Ok(Mount {
            container_path: wanted.mount_path.clone(),
            host_path: host_path.clone(),
            read_only: wanted.read_only || volume.read_only,
            selinux_relabel: volume.managed,
            propagation: match wanted.mount_propagation.as_deref() {
                Some("HostToContainer") => Propagation::HostToContainer,
                Some("Bidirectional") => Propagation::Bidirectional,
                // Newer versions are mounted over it on the host.
                _ if is_refreshed(wanted, volume) => Propagation::HostToContainer,
                _ => Propagation::Private,
            },
        })
    };
    container.volume_mounts.iter().enumerate().map(mount).collect()
}

/// The block devices of a container.
///
/// # Errors
/// A volume is missing or is not a block device.
pub(crate) fn devices(
    container: &Container,
    volumes: &BTreeMap<String, VolumeOnHost>,
) -> Result<Vec<DeviceNode>, TranslateError> {
    let device = |wanted: &proto_api::core::v1::VolumeDevice| {
        let volume = volumes.get(&wanted.name).filter(|volume| volume.block);
        let volume = volume.ok_or_else(|| TranslateError::NoVolume(wanted.name.clone()))?;
        Ok(DeviceNode {
            container_path: wanted.device_path.clone(),
            host_path: volume.path.clone(),
            permissions: if volume.read_only { "r" } else { "mrw" }.to_owned(),
        })
    };
    container.volume_devices.iter().map(device).collect()
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::VolumeDevice;

    use super::*;

    fn container(mounts: &[(&str, &str)]) -> Container {
        let mount = |(path, expr): &(&str, &str)| VolumeMount {
            name: "v".into(),
            mount_path: "/m".into(),
            sub_path: (*path).into(),
            sub_path_expr: (*expr).into(),
            ..VolumeMount::default()
        };
        Container {
            name: "c".into(),
            volume_mounts: mounts.iter().map(mount).collect(),
            ..Container::default()
        }
    }

    fn volumes(volume: VolumeOnHost) -> BTreeMap<String, VolumeOnHost> {
        [("v".to_owned(), volume)].into()
    }

    #[test]
    fn sub_paths_are_refreshed_only_in_volumes_with_that_option() {
        let propagation = |path: &str, follows: bool| {
            let volumes =
                volumes(VolumeOnHost { path: "/h".into(), follows, ..Default::default() });
            let container = container(&[(path, "")]);
            let parts = sub_paths(&container, &[], &volumes).unwrap();
            let at = parts.iter().map(|part| (part.index, "/part".to_owned())).collect();
            let mounts = mounts(&container, &volumes, &at).unwrap();
            (parts.iter().any(|part| part.follows), mounts[0].propagation)
        };
        assert_eq!(propagation("f", true), (true, Propagation::HostToContainer));
        assert_eq!(propagation("f", false), (false, Propagation::Private));
        assert_eq!(propagation("", true), (false, Propagation::Private));
    }

    #[test]
    fn parts_are_named_by_the_environment() {
        let env = [("POD".to_owned(), "p-1".to_owned()), ("UP".to_owned(), "..".to_owned())];
        let cases: [(&str, &str, Option<&[&str]>); 8] = [
            ("", "", Some(&[])),
            ("a/b", "", Some(&["a/b"])),
            ("$(POD)", "", Some(&["$(POD)"])),
            ("", "logs/$(POD)", Some(&["logs/p-1"])),
            ("", "$$(POD)", Some(&["$(POD)"])),
            ("", "$(NONE)", None),
            ("", "$(UP)/x", None),
            ("a/../b", "", None),
        ];
        for (path, expr, wanted) in cases {
            let container = container(&[("", ""), (path, expr)]);
            let got = sub_paths(&container, &env, &BTreeMap::new()).ok();
            let got =
                got.map(|all| all.into_iter().map(|p| (p.index, p.volume.to_owned(), p.path)));
            let wanted = wanted.map(|all| all.iter().map(|p| (1, "v".into(), (*p).into())));
            assert_eq!(
                got.map(Iterator::collect::<Vec<_>>),
                wanted.map(Iterator::collect),
                "{path}{expr}"
            );
        }
    }

    #[test]
    fn checked_volumes_are_bound_like_sub_paths_unless_mount_propagation_is_bidirectional() {
        let mut container = container(&[("", ""), ("", ""), ("a", "")]);
        container.volume_mounts[1].mount_propagation = Some("Bidirectional".into());
        let on_host = VolumeOnHost { checked: true, ..Default::default() };
        let got = sub_paths(&container, &[], &volumes(on_host)).expect("parts");
        let got: Vec<_> = got.into_iter().map(|part| (part.index, part.path)).collect();
        assert_eq!(got, [(0, String::new()), (2, "a".to_owned())]);
    }

    #[test]
    fn recursive_read_only_mounts_are_bound() {
        use AllReadOnly::{Enabled, IfPossible};
        let cases = [
            (None, true, None, None),
            (Some("Disabled"), true, None, None),
            (Some("Enabled"), true, None, Some(Enabled)),
            (Some("IfPossible"), true, Some("None"), Some(IfPossible)),
            // Combinations that the API rejects.
            (Some("Enabled"), false, None, None),
            (Some("Enabled"), true, Some("HostToContainer"), None),
        ];
        for (mode, read_only, propagation, wanted) in cases {
            let mut container = container(&[("", "")]);
            let mount = &mut container.volume_mounts[0];
            mount.recursive_read_only = mode.map(Into::into);
            mount.read_only = read_only;
            mount.mount_propagation = propagation.map(Into::into);
            let got = sub_paths(&container, &[], &volumes(VolumeOnHost::default())).expect("parts");
            let got = got.first().map(|part| (part.path.as_str(), part.all_read_only));
            assert_eq!(got, wanted.map(|wanted| ("", Some(wanted))), "{mode:?} {propagation:?}");
        }
    }

    #[test]
    fn mounts_of_read_only_volumes_are_read_only() {
        let on_host =
            |read_only| VolumeOnHost { path: "/h".into(), read_only, ..Default::default() };
        let container = container(&[("", ""), ("part", "")]);
        let parts = BTreeMap::from([(1, "/bound".to_owned())]);
        let got = mounts(&container, &volumes(on_host(true)), &parts).expect("mounts");
        let got: Vec<_> = got.iter().map(|m| (m.host_path.as_str(), m.read_only)).collect();
        assert_eq!(got, [("/h", true), ("/bound", true)]);
        let missing = mounts(&container, &volumes(on_host(false)), &BTreeMap::new());
        assert_eq!(
            missing,
            Err(TranslateError::NoVolume("v".into())),
            "never the whole for a part"
        );
    }

    #[test]
    fn a_device_is_a_block_volume() {
        let device = VolumeDevice { name: "v".into(), device_path: "/dev/x".into() };
        let container = Container { volume_devices: vec![device], ..Container::default() };
        let block = |block, read_only| {
            let path = "/dev/loop0".into();
            let all = volumes(VolumeOnHost { path, block, read_only, ..Default::default() });
            devices(&container, &all).map(|all| all[0].permissions.clone())
        };
        assert_eq!(block(true, false).as_deref(), Ok("mrw"));
        assert_eq!(block(true, true).as_deref(), Ok("r"));
        assert!(block(false, false).is_err());
    }
}
