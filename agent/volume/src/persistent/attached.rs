//! Disks that the node itself attaches: of other machines over iSCSI, of a storage network over Fibre Channel. Pure: what is run, and
//! by which names the kernel then shows the disk.

use std::collections::BTreeMap;

use proto_api::core::v1::{
    FCVolumeSource, PersistentVolume, Pod, Secret, SecretReference, Volume as ApiVolume,
};
use serde::{Deserialize, Serialize};

use crate::disk::Run;

/// Port of a portal that names none.
const PORT: u16 = 3260;
/// Exit of the initiator's tool when a session is there already.
const SESSION_EXISTS: &[i32] = &[15];
/// Exit of the initiator's tool when there is nothing to end.
const NO_OBJECTS: &[i32] = &[21];
const ISCSI: &str = "iscsiadm";

/// A disk of another machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Iscsi {
    /// Addresses with ports under which the target answers, the first first.
    pub portals: Vec<String>,
    /// Name of the target.
    pub iqn: String,
    /// Number of the disk.
    pub lun: i32,
    /// Interface of the initiator.
    pub interface: String,
    /// Name of the initiator; the node's own when empty.
    pub initiator: String,
    /// Whether asking for targets needs a password.
    pub chap_discovery: bool,
    /// Whether a session needs one.
    pub chap_session: bool,
    /// Where they are, by namespace and name.
    pub secret: Option<(String, String)>,
}

/// A disk of a storage network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FibreChannel {
    /// Names of ports, with the number of the disk.
    pub targets: Vec<(String, i32)>,
    /// Identifiers of the disk itself.
    pub ids: Vec<String>,
}

/// A disk that the node attaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attached {
    /// Over iSCSI.
    Iscsi(Iscsi),
    /// Over Fibre Channel.
    FibreChannel(FibreChannel),
}

/// A disk with what is on it.
pub(super) type Found = (Attached, String, bool);

/// The disk of a persistent volume, the type of its file system and whether it may only be read; `None` for other sources.
pub(super) fn of_volume(volume: &PersistentVolume) -> Option<Found> {
    let source = &volume.spec.persistent_volume_source;
    if let Some(fc) = &source.fc {
        return Some(fibre_channel(fc));
    }
    let iscsi = source.iscsi.as_ref()?;
    let disk = Iscsi {
        portals: portals(&iscsi.target_portal, &iscsi.portals),
        iqn: iscsi.iqn.clone(),
        lun: iscsi.lun,
        interface: interface(&iscsi.iscsi_interface),
        initiator: iscsi.initiator_name.clone().unwrap_or_default(),
        chap_discovery: iscsi.chap_auth_discovery,
        chap_session: iscsi.chap_auth_session,
        secret: iscsi
            .secret_ref
            .as_ref()
            .map(|s: &SecretReference| (s.namespace.clone(), s.name.clone())),
    };
    Some((Attached::Iscsi(disk), iscsi.fs_type.clone(), iscsi.read_only))
}

/// The same for a volume that a pod describes.
pub(super) fn of_pod(pod: &Pod, volume: &ApiVolume) -> Option<Found> {
    let source = &volume.volume_source;
    if let Some(fc) = &source.fc {
        return Some(fibre_channel(fc));
    }
    let iscsi = source.iscsi.as_ref()?;
    let secret = iscsi.secret_ref.as_ref();
    let disk = Iscsi {
        portals: portals(&iscsi.target_portal, &iscsi.portals),
        iqn: iscsi.iqn.clone(),
        lun: iscsi.lun,
        interface: interface(&iscsi.iscsi_interface),
        initiator: iscsi.initiator_name.clone().unwrap_or_default(),
        chap_discovery: iscsi.chap_auth_discovery,
        chap_session: iscsi.chap_auth_session,
        secret: secret.map(|s| (pod.metadata.namespace.clone(), s.name.clone())),
    };
    Some((Attached::Iscsi(disk), iscsi.fs_type.clone(), iscsi.read_only))
}

fn fibre_channel(fc: &FCVolumeSource) -> Found {
    let lun = fc.lun.unwrap_or(0);
    let targets = fc.target_wwns.iter().map(|name| (name.to_lowercase(), lun)).collect();
    let disk = FibreChannel { targets, ids: fc.wwids.clone() };
    (Attached::FibreChannel(disk), fc.fs_type.clone(), fc.read_only)
}

/// Each once, with its port.
fn portals(first: &str, others: &[String]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for portal in std::iter::once(first).chain(others.iter().map(String::as_str)) {
        // the colons of an address in brackets are its own
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
    if name.is_empty() { "default".to_owned() } else { name.to_owned() }
}

impl Attached {
    /// The secret that attaching it needs.
    #[must_use]
    pub fn secret(&self) -> Option<&(String, String)> {
        match self {
            Self::Iscsi(disk) => disk.secret.as_ref(),
            Self::FibreChannel(_) => None,
        }
    }

    /// Names below `/dev/disk` that lead to the disk once it is attached, in the order in which they are tried. `*` stands for anything.
    #[must_use]
    pub fn links(&self) -> Vec<String> {
        match self {
            Self::Iscsi(disk) => {
                let one = |portal: &String| {
                    let (iqn, lun) = (&disk.iqn, disk.lun);
                    // over hardware of its own the name begins with that
                    let start = if disk.interface == "default" { "ip-" } else { "*ip-" };
                    format!("by-path/{start}{portal}-iscsi-{iqn}-lun-{lun}")
                };
                disk.portals.iter().map(one).collect()
            }
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

impl Iscsi {
    /// What is run to have sessions with the target, portal by portal; that one of them works is enough.
    ///
    /// # Errors
    /// A password is needed and not in the secret.
    pub fn log_in(&self, secret: Option<&Secret>) -> Result<Vec<Vec<Run>>, String> {
        if !self.initiator.is_empty() {
            // An interface of its own would be needed, whose name has to be remembered.
            return Err("initiatorName is not supported by this node agent".to_owned());
        }
        let passwords = self.passwords(secret)?;
        Ok(self.portals.iter().map(|portal| self.log_in_at(portal, &passwords)).collect())
    }

    fn log_in_at(&self, portal: &str, passwords: &BTreeMap<String, String>) -> Vec<Run> {
        let find = |more: &[&str]| {
            let start =
                ["-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", &self.interface];
            Run::new(ISCSI, &[&start, more].concat())
        };
        let mut all = vec![find(&["-o", "new"])];
        let set = |passwords: &BTreeMap<String, String>, prefix: &str| {
            let own = passwords.iter().filter(|(key, _)| key.starts_with(prefix));
            own.map(|(key, value)| (key.clone(), value.clone())).collect::<Vec<_>>()
        };
        if self.chap_discovery {
            let method = "discovery.sendtargets.auth.authmethod";
            all.push(find(&["-o", "update", "-n", method, "-v", "CHAP"]));
            for (key, value) in set(passwords, "discovery.") {
                all.push(find(&["-o", "update", "-n", &key, "-v", &value]));
            }
        }
        all.push(find(&["--discover"]));
        if self.chap_session {
            let method = "node.session.auth.authmethod";
            all.push(self.node(portal, &["-o", "update", "-n", method, "-v", "CHAP"]));
            for (key, value) in set(passwords, "node.") {
                all.push(self.node(portal, &["-o", "update", "-n", &key, "-v", &value]));
            }
        }
        // the agent decides when a session begins, also after a reboot
        all.push(self.node(portal, &["-o", "update", "-n", "node.startup", "-v", "manual"]));
        all.push(self.node(portal, &["--login"]).or(SESSION_EXISTS));
        all
    }

    /// What is run to end the sessions.
    #[must_use]
    pub fn log_out(&self) -> Vec<Run> {
        let one = |portal: &String| {
            let ends = ["--logout", "-o"];
            let [logout, op] = ends;
            [
                self.node(portal, &[logout]).or(NO_OBJECTS),
                self.node(portal, &[op, "delete"]).or(NO_OBJECTS),
            ]
        };
        self.portals.iter().flat_map(one).collect()
    }

    fn node(&self, portal: &str, more: &[&str]) -> Run {
        let start = ["-m", "node", "-p", portal, "-T", &self.iqn, "-I", &self.interface];
        Run::new(ISCSI, &[&start, more].concat())
    }

    /// The keys of the secret are the names of the tool's own settings.
    fn passwords(&self, secret: Option<&Secret>) -> Result<BTreeMap<String, String>, String> {
        if !self.chap_discovery && !self.chap_session {
            return Ok(BTreeMap::new());
        }
        let name = self.secret.clone().unwrap_or_default();
        let secret = secret.ok_or_else(|| format!("secret \"{}/{}\" not found", name.0, name.1))?;
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

    fn shown(runs: &[Run]) -> Vec<String> {
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
        ];
        assert_eq!(shown(&runs[1]), expect);
        assert_eq!(runs[1].last().map(|run| run.fine), Some(&[15][..]), "a session that is there");
        let ends = shown(&disk.log_out());
        assert_eq!(ends.len(), 4);
        assert_eq!(
            ends[..2],
            [
                "-p 10.0.0.1:3260 -T IQN -I default --logout",
                "-p 10.0.0.1:3260 -T IQN -I default -o delete"
            ]
        );
        let links = Attached::Iscsi(disk).links();
        assert_eq!(links[0], "by-path/ip-10.0.0.1:3260-iscsi-iqn.2003-04.com.example:x-lun-7");
    }

    #[test]
    fn passwords_come_from_the_secret() {
        let name = Some(("ns".to_owned(), "chap".to_owned()));
        let disk = Iscsi { chap_session: true, secret: name, ..disk() };
        assert_eq!(disk.log_in(None).unwrap_err(), "secret \"ns/chap\" not found");
        let mut secret = Secret::default();
        for (key, value) in [("node.session.auth.username", "u"), ("discovery.x", "y")] {
            secret.data.insert(key.into(), value.into());
        }
        let runs = shown(&disk.log_in(Some(&secret)).unwrap()[0]);
        let at = "-p 10.0.0.1:3260 -T IQN -I default -o update -n";
        assert!(runs.contains(&format!("{at} node.session.auth.authmethod -v CHAP")), "{runs:?}");
        assert!(runs.contains(&format!("{at} node.session.auth.username -v u")));
        assert!(!runs.iter().any(|run| run.contains("discovery.x")), "not asked for");
        let named = Iscsi { initiator: "iqn.x".into(), ..self::disk() };
        assert!(named.log_in(None).unwrap_err().contains("initiatorName"));
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
        let source = FCVolumeSource { wwids: vec!["36 00a".into()], ..FCVolumeSource::default() };
        assert_eq!(fibre_channel(&source).0.links(), ["by-id/scsi-36_00a"]);
    }
}
