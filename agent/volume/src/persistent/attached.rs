//! Disks that the node attaches: iSCSI and Fibre Channel. Pure: the programs to run, and the names under which the kernel shows
//! the disk.

use std::collections::BTreeMap;

use proto_api::core::v1::{
    FCVolumeSource, ISCSIPersistentVolumeSource, ISCSIVolumeSource, LocalObjectReference,
    PersistentVolume, Pod, Secret, SecretReference, Volume as ApiVolume,
};
use proto_api::sha256_hex;
use serde::{Deserialize, Serialize};

use crate::disk::ProgramRun;

/// Default iSCSI port.
const PORT: u16 = 3260;
/// Exit code of iscsiadm if the session exists.
const SESSION_EXISTS: &[i32] = &[15];
/// Exit code of iscsiadm if there is no object to act on.
const NO_OBJECTS: &[i32] = &[21];
const ISCSI: &str = "iscsiadm";
/// The default interface of iscsiadm.
const DEFAULT: &str = "default";
/// Name prefix of interfaces created for an initiator name.
const OWN: &str = "volume-";

/// An iSCSI disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Iscsi {
    /// Its unique name among the node's volumes, as in Kubernetes.
    #[serde(default)]
    pub name: String,
    /// Portals of the target with ports, in order of preference.
    pub portals: Vec<String>,
    /// Name of the target.
    pub iqn: String,
    /// Logical unit number.
    pub lun: i32,
    /// Interface of iscsiadm.
    pub interface: String,
    /// Initiator name; empty for the node's.
    pub initiator: String,
    /// Whether discovery uses CHAP.
    pub chap_discovery: bool,
    /// Whether the session uses CHAP.
    pub chap_session: bool,
    /// Secret with the CHAP credentials, by namespace and name.
    pub secret: Option<(String, String)>,
}

/// A Fibre Channel disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FibreChannel {
    /// Its unique name among the node's volumes, as in Kubernetes.
    pub name: String,
    /// World wide names of targets with the LUN.
    pub targets: Vec<(String, i32)>,
    /// World wide identifiers of the disk.
    pub ids: Vec<String>,
}

/// A disk that the node attaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachedDisk {
    /// Over iSCSI.
    Iscsi(Iscsi),
    /// Over Fibre Channel.
    FibreChannel(FibreChannel),
}

/// A disk, its file system type, and whether it is read-only.
pub(super) type FoundDisk = (AttachedDisk, String, bool);

/// The disk of a persistent volume; `None` for other sources.
pub(super) fn from_volume(volume: &PersistentVolume) -> Option<FoundDisk> {
    let source = &volume.spec.persistent_volume_source;
    source.fc.as_deref().map(fibre_channel).or_else(|| source.iscsi.as_deref().map(iscsi))
}

/// The disk of a volume described in a pod; `None` for other sources.
pub(super) fn from_pod(pod: &Pod, volume: &ApiVolume) -> Option<FoundDisk> {
    let source = &volume.volume_source;
    let of_pods = |own: &ISCSIVolumeSource| iscsi(&as_persistent(own, &pod.metadata.namespace));
    source.fc.as_deref().map(fibre_channel).or_else(|| source.iscsi.as_deref().map(of_pods))
}

/// A pod's source as a persistent volume's: its secret is in the pod's namespace.
fn as_persistent(of_pod: &ISCSIVolumeSource, namespace: &str) -> ISCSIPersistentVolumeSource {
    let secret = |of: &LocalObjectReference| SecretReference {
        name: of.name.clone(),
        namespace: namespace.to_owned(),
    };
    ISCSIPersistentVolumeSource {
        target_portal: of_pod.target_portal.clone(),
        iqn: of_pod.iqn.clone(),
        lun: of_pod.lun,
        iscsi_interface: of_pod.iscsi_interface.clone(),
        fs_type: of_pod.fs_type.clone(),
        read_only: of_pod.read_only,
        portals: of_pod.portals.clone(),
        chap_auth_discovery: of_pod.chap_auth_discovery,
        chap_auth_session: of_pod.chap_auth_session,
        secret_ref: of_pod.secret_ref.as_ref().map(secret),
        initiator_name: of_pod.initiator_name.clone(),
    }
}

fn iscsi(source: &ISCSIPersistentVolumeSource) -> FoundDisk {
    let secret = source.secret_ref.as_ref();
    let name = format!("{}:{}:{}", source.target_portal, source.iqn, source.lun);
    let initiator = source.initiator_name.clone().unwrap_or_default();
    let interface = match interface(&source.iscsi_interface) {
        default if default == DEFAULT && !initiator.is_empty() => {
            let own = sha256_hex(format!("{initiator} {name}").as_bytes());
            // Interface names of iscsiadm have at most 64 characters.
            format!("{OWN}{}", own.get(..32).unwrap_or(&own))
        }
        named => named,
    };
    let disk = Iscsi {
        name,
        portals: portals(&source.target_portal, &source.portals),
        iqn: source.iqn.clone(),
        lun: source.lun,
        interface,
        initiator,
        chap_discovery: source.chap_auth_discovery,
        chap_session: source.chap_auth_session,
        secret: secret.map(|secret| (secret.namespace.clone(), secret.name.clone())),
    };
    (AttachedDisk::Iscsi(disk), source.fs_type.clone(), source.read_only)
}

fn fibre_channel(fc: &FCVolumeSource) -> FoundDisk {
    let lun = fc.lun.unwrap_or(0);
    let targets = fc.target_wwns.iter().map(|name| (name.to_lowercase(), lun)).collect();
    // Formatted like a Go list.
    let name = match fc.target_wwns.as_slice() {
        [] => format!("[{}]", fc.wwids.join(" ")),
        names => format!("[{}]:{lun}", names.join(" ")),
    };
    let disk = FibreChannel { name, targets, ids: fc.wwids.clone() };
    (AttachedDisk::FibreChannel(disk), fc.fs_type.clone(), fc.read_only)
}

/// The portals with ports, without duplicates.
fn portals(first: &str, others: &[String]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for portal in std::iter::once(first).chain(others.iter().map(String::as_str)) {
        // An IPv6 address in brackets contains colons.
        let has_port = portal.rsplit_once(':').is_some_and(|(host, port)| {
            port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']'))
        });
        let portal = if has_port { portal.to_owned() } else { format!("{portal}:{PORT}") };
        if !all.contains(&portal) {
            all.push(portal);
        }
    }
    all
}

fn interface(name: &str) -> String {
    if name.is_empty() { DEFAULT.to_owned() } else { name.to_owned() }
}

impl AttachedDisk {
    /// Its unique name among the node's volumes, without the plugin's name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Iscsi(disk) => &disk.name,
            Self::FibreChannel(disk) => &disk.name,
        }
    }

    /// Name of its mount directory. It is derived from the disk, because volume names in pods are not unique.
    #[must_use]
    pub fn mount_name(&self) -> String {
        match self {
            Self::Iscsi(disk) => sha256_hex(format!("{} {}", disk.interface, disk.name).as_bytes()),
            Self::FibreChannel(disk) => sha256_hex(disk.name.as_bytes()),
        }
    }

    /// The secret required to attach it.
    #[must_use]
    pub fn secret(&self) -> Option<&(String, String)> {
        match self {
            Self::Iscsi(disk) => disk.secret.as_ref(),
            Self::FibreChannel(_) => None,
        }
    }

    /// Names below `/dev/disk` that link to the attached disk, in order of preference; `*` is a wildcard.
    #[must_use]
    pub fn links(&self) -> Vec<String> {
        match self {
            Self::Iscsi(disk) => disk.every_link(),
            Self::FibreChannel(disk) => {
                let port = |(name, lun): &(String, i32)| {
                    let name = name.strip_prefix("0x").unwrap_or(name);
                    format!("by-path/*-fc-0x{name}-lun-{lun}")
                };
                let id = |id: &String| format!("by-id/scsi-{}", id.replace(' ', "_"));
                disk.targets.iter().map(port).chain(disk.ids.iter().map(id)).collect()
            }
        }
    }
}

/// Why there is no log-in to a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IscsiError {
    /// The volume names an initiator, and an interface that has its own.
    #[error("initiatorName cannot be set for iscsiInterface {0}")]
    Initiator(String),
    /// The secret does not exist yet.
    #[error("secret \"{namespace}/{name}\" not found")]
    Secret { namespace: String, name: String },
}

impl Iscsi {
    /// Commands that log in to the target after [`Iscsi::prepare`], per portal; one successful portal is enough.
    ///
    /// # Errors
    /// A password is missing in the secret, or the initiator name is invalid.
    pub fn log_in(&self, secret: Option<&Secret>) -> Result<Vec<Vec<ProgramRun>>, IscsiError> {
        if !self.initiator.is_empty() && !self.has_own_interface() {
            return Err(IscsiError::Initiator(self.interface.clone()));
        }
        let passwords = self.passwords(secret)?;
        Ok(self.portals.iter().map(|portal| self.log_in_at(portal, &passwords)).collect())
    }

    /// Whether the disk has its own initiator name, which requires an interface of its own.
    fn has_own_interface(&self) -> bool {
        self.interface.starts_with(OWN)
    }

    /// Commands that create that interface, to be run first.
    #[must_use]
    pub fn create_interface(&self) -> Vec<ProgramRun> {
        if !self.has_own_interface() {
            return Vec::new();
        }
        let of = |more: &[&str]| {
            ProgramRun::new(
                ISCSI,
                &[&["-m", "iface", "-I", self.interface.as_str()], more].concat(),
            )
        };
        vec![
            of(&["-o", "new"]).accept(SESSION_EXISTS),
            of(&["-o", "update", "-n", "iface.initiatorname", "-v", &self.initiator]),
        ]
    }

    fn log_in_at(&self, portal: &str, passwords: &BTreeMap<String, String>) -> Vec<ProgramRun> {
        let set = |passwords: &BTreeMap<String, String>, prefix: &str| {
            let own = passwords.iter().filter(|(key, _)| key.starts_with(prefix));
            own.map(|(key, value)| (key.clone(), value.clone())).collect::<Vec<_>>()
        };
        // iscsiadm mishandles a target that was both entered by hand and discovered, so it is always discovered.
        let mut all = vec![self.discovery_command(portal, &["-o", "new"])];
        if self.chap_discovery {
            let method = "discovery.sendtargets.auth.authmethod";
            all.push(self.discovery_command(portal, &["-o", "update", "-n", method, "-v", "CHAP"]));
            for (key, value) in set(passwords, "discovery.") {
                all.push(
                    self.discovery_command(portal, &["-o", "update", "-n", &key, "-v", &value]),
                );
            }
        }
        all.push(self.discovery_command(portal, &["--discover"]));
        if self.chap_session {
            let method = "node.session.auth.authmethod";
            all.push(self.node_command(portal, &["-o", "update", "-n", method, "-v", "CHAP"]));
            for (key, value) in set(passwords, "node.") {
                all.push(self.node_command(portal, &["-o", "update", "-n", &key, "-v", &value]));
            }
        }
        // The agent decides when a session starts, also after a reboot.
        all.push(
            self.node_command(portal, &["-o", "update", "-n", "node.startup", "-v", "manual"]),
        );
        all.push(self.node_command(portal, &["--login"]).accept(SESSION_EXISTS));
        // An existing session may not show the disk yet.
        all.push(self.node_command(portal, &["--rescan"]));
        all
    }

    /// Names of the disk, one per portal.
    #[must_use]
    pub fn every_link(&self) -> Vec<String> {
        self.portals.iter().map(|portal| self.link(portal)).collect()
    }

    /// Name of the disk through one portal.
    #[must_use]
    pub fn link(&self, portal: &str) -> String {
        self.link_of(portal, &self.lun.to_string())
    }

    /// Wildcard name of all disks of the session through one portal.
    #[must_use]
    pub fn links_of_session(&self, portal: &str) -> String {
        self.link_of(portal, "*")
    }

    fn link_of(&self, portal: &str, lun: &str) -> String {
        // With an offload interface the name has a prefix.
        let start = if self.interface == DEFAULT { "ip-" } else { "*ip-" };
        format!("by-path/{start}{portal}-iscsi-{}-lun-{lun}", self.iqn)
    }

    /// Whether `other` uses the same session through a portal.
    #[must_use]
    pub fn shares_session(&self, other: &Self, portal: &str) -> bool {
        (&self.iqn, &self.interface) == (&other.iqn, &other.interface)
            && self.portals.iter().any(|own| own == portal)
    }

    /// Commands that log out of the session through one portal.
    #[must_use]
    pub fn log_out(&self, portal: &str) -> Vec<ProgramRun> {
        // The portal's record is kept: deleting it would delete targets that others entered.
        vec![
            self.node_command(portal, &["--logout"]).accept(NO_OBJECTS),
            self.node_command(portal, &["-o", "delete"]).accept(NO_OBJECTS),
        ]
    }

    /// Command that deletes the interface after the sessions ended.
    #[must_use]
    pub fn delete_interface(&self) -> Option<ProgramRun> {
        let of = ["-m", "iface", "-I", self.interface.as_str(), "-o", "delete"];
        self.has_own_interface().then(|| ProgramRun::new(ISCSI, &of).accept(NO_OBJECTS))
    }

    fn discovery_command(&self, portal: &str, more: &[&str]) -> ProgramRun {
        let start = ["-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", &self.interface];
        ProgramRun::new(ISCSI, &[&start, more].concat())
    }

    fn node_command(&self, portal: &str, more: &[&str]) -> ProgramRun {
        let start = ["-m", "node", "-p", portal, "-T", &self.iqn, "-I", &self.interface];
        ProgramRun::new(ISCSI, &[&start, more].concat())
    }

    /// Settings of iscsiadm from the secret; its keys are the names of the settings.
    fn passwords(&self, secret: Option<&Secret>) -> Result<BTreeMap<String, String>, IscsiError> {
        if !self.chap_discovery && !self.chap_session {
            return Ok(BTreeMap::new());
        }
        let secret = secret.ok_or_else(|| {
            let (namespace, name) = self.secret.clone().unwrap_or_default();
            IscsiError::Secret { namespace, name }
        })?;
        let text = |(key, value): (&String, &Vec<u8>)| {
            Some((key.clone(), String::from_utf8(value.clone()).ok()?))
        };
        Ok(secret.data.iter().filter_map(text).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> Iscsi {
        Iscsi {
            portals: portals("10.0.0.1", &["[fd00::1]:99".into(), "10.0.0.1:3260".into()]),
            iqn: "iqn.2003-04.com.example:x".into(),
            lun: 7,
            interface: interface(""),
            ..Iscsi::default()
        }
    }

    fn shown(runs: &[ProgramRun]) -> Vec<String> {
        runs.iter().map(|run| run.args[2..].join(" ").replace(&disk().iqn, "IQN")).collect()
    }

    #[test]
    fn sessions_are_had_and_ended_portal_by_portal() {
        let disk = disk();
        assert_eq!(disk.portals, ["10.0.0.1:3260", "[fd00::1]:99"]);
        let runs = disk.log_in(None).unwrap();
        let expect = [
            "-t sendtargets -p [fd00::1]:99 -I default -o new",
            "-t sendtargets -p [fd00::1]:99 -I default --discover",
            "-p [fd00::1]:99 -T IQN -I default -o update -n node.startup -v manual",
            "-p [fd00::1]:99 -T IQN -I default --login",
            "-p [fd00::1]:99 -T IQN -I default --rescan",
        ];
        assert_eq!(shown(&runs[1]), expect);
        assert_eq!(runs[1][3].accepted, [15], "a session that is there");
        let ends = [
            "-p 10.0.0.1:3260 -T IQN -I default --logout",
            "-p 10.0.0.1:3260 -T IQN -I default -o delete",
        ];
        assert_eq!(shown(&disk.log_out("10.0.0.1:3260")), ends);
        assert_eq!(disk.delete_interface(), None);
        let second = Iscsi { lun: 8, portals: portals("10.0.0.1", &[]), ..disk.clone() };
        assert!(
            second.shares_session(&disk, "10.0.0.1:3260")
                && !second.shares_session(&disk, "[fd00::1]:99")
        );
        let named = Iscsi { interface: "own".into(), ..second.clone() };
        let elsewhere = Iscsi { iqn: "other".into(), ..second };
        assert!(
            ![named, elsewhere].iter().any(|other| other.shares_session(&disk, "10.0.0.1:3260"))
        );
        assert!(disk.links_of_session("10.0.0.1:3260").ends_with(":x-lun-*"));
        let links = AttachedDisk::Iscsi(disk).links();
        assert_eq!(links[0], "by-path/ip-10.0.0.1:3260-iscsi-iqn.2003-04.com.example:x-lun-7");
    }

    #[test]
    fn a_mount_is_named_by_its_disk() {
        let of = |lun, interface: &str| {
            let mut disk = Iscsi { lun, interface: interface.into(), ..disk() };
            disk.name = format!("10.0.0.1:{}:{lun}", disk.iqn);
            AttachedDisk::Iscsi(disk).mount_name()
        };
        assert_eq!(of(0, DEFAULT), of(0, DEFAULT));
        assert!(of(0, DEFAULT) != of(1, DEFAULT) && of(0, DEFAULT) != of(0, "own"));
        let name = |name: &str| FibreChannel { name: name.into(), ..FibreChannel::default() };
        let [one, other] = ["[a]:0", "../../x"].map(|of| AttachedDisk::FibreChannel(name(of)));
        assert_ne!(one.mount_name(), other.mount_name());
        assert!(!other.mount_name().contains('/'));
    }

    #[test]
    fn passwords_come_from_the_secret() {
        let name = Some(("ns".to_owned(), "chap".to_owned()));
        let disk = Iscsi { chap_session: true, secret: name, ..disk() };
        assert_eq!(disk.log_in(None).unwrap_err().to_string(), "secret \"ns/chap\" not found");
        let mut secret = Secret::default();
        for (key, value) in [("node.session.auth.username", "u"), ("discovery.x", "y")] {
            secret.data.insert(key.into(), value.into());
        }
        let runs = shown(&disk.log_in(Some(&secret)).unwrap()[0]);
        let at = "-p 10.0.0.1:3260 -T IQN -I default -o update -n";
        assert!(runs.contains(&format!("{at} node.session.auth.authmethod -v CHAP")), "{runs:?}");
        assert!(runs.contains(&format!("{at} node.session.auth.username -v u")));
        assert!(!runs.iter().any(|run| run.contains("discovery.")), "not asked for: {runs:?}");
        let asked = Iscsi { chap_discovery: true, chap_session: false, ..disk };
        let runs = shown(&asked.log_in(Some(&secret)).unwrap()[0]);
        let found = [
            "-t sendtargets -p 10.0.0.1:3260 -I default -o update -n discovery.x -v y",
            "-t sendtargets -p 10.0.0.1:3260 -I default --discover",
        ];
        assert!(runs.windows(2).any(|two| two == found), "{runs:?}");
        assert!(!runs.iter().any(|run| run.contains("node.session")), "{runs:?}");
    }

    #[test]
    fn an_initiator_with_a_name_has_an_interface_of_its_own() {
        let source = |interface: &str| ISCSIPersistentVolumeSource {
            target_portal: "10.0.0.1".into(),
            iqn: disk().iqn,
            iscsi_interface: interface.into(),
            initiator_name: Some("iqn.x".into()),
            ..ISCSIPersistentVolumeSource::default()
        };
        let (AttachedDisk::Iscsi(named), ..) = iscsi(&source("default")) else {
            panic!("no iSCSI")
        };
        assert!(named.interface.len() <= 64);
        let own = named.interface.clone();
        let made = [
            format!("-I {own} -o new"),
            format!("-I {own} -o update -n iface.initiatorname -v iqn.x"),
        ];
        assert_eq!(shown(&named.create_interface()), made);
        let runs = shown(&named.log_in(None).unwrap()[0]);
        assert!(runs.iter().all(|run| run.contains(&format!("-I {own}"))), "{runs:?}");
        let leaves: Vec<ProgramRun> = named.delete_interface().into_iter().collect();
        assert_eq!(shown(&leaves), [format!("-I {own} -o delete")]);
        let (AttachedDisk::Iscsi(named), ..) = iscsi(&source("bnx2i.0")) else {
            panic!("no iSCSI")
        };
        assert!(matches!(named.log_in(None), Err(IscsiError::Initiator(_))));
    }

    #[test]
    fn disks_of_a_storage_network_are_found_by_port_or_by_identifier() {
        let source = FCVolumeSource {
            target_wwns: vec!["50060E801049CFD1".into()],
            lun: Some(2),
            ..FCVolumeSource::default()
        };
        let (disk, ..) = fibre_channel(&source);
        assert_eq!(disk.links(), ["by-path/*-fc-0x50060e801049cfd1-lun-2"]);
        assert_eq!(disk.name(), "[50060E801049CFD1]:2");
        let source = FCVolumeSource { wwids: vec!["36 00a".into()], ..FCVolumeSource::default() };
        let (disk, ..) = fibre_channel(&source);
        assert_eq!(disk.links(), ["by-id/scsi-36_00a"]);
        assert_eq!(disk.name(), "[36 00a]");
    }

    #[test]
    fn a_pods_disk_is_a_persistent_volumes_with_a_secret_of_its_namespace() {
        let source = ISCSIVolumeSource {
            target_portal: "10.0.0.1".into(),
            iqn: "iqn.2003-04.com.example:x".into(),
            lun: 3,
            fs_type: "xfs".into(),
            chap_auth_session: true,
            secret_ref: Some(LocalObjectReference { name: "chap".into() }),
            ..ISCSIVolumeSource::default()
        };
        let mut pod = Pod::default();
        pod.metadata.namespace = "ns".into();
        let mut volume = ApiVolume::default();
        volume.volume_source.iscsi = Some(Box::new(source));
        let (disk, fs_type, _) = from_pod(&pod, &volume).unwrap();
        assert_eq!(disk.name(), "10.0.0.1:iqn.2003-04.com.example:x:3");
        assert_eq!(disk.secret(), Some(&("ns".to_owned(), "chap".to_owned())));
        assert_eq!(fs_type, "xfs");
    }
}
