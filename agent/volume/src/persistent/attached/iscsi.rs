//! Disks over iSCSI. Pure: the runs of iscsiadm, and the names under which the kernel shows the disk.

use std::collections::{BTreeMap, BTreeSet};

use proto_api::core::v1::{ISCSIPersistentVolumeSource, Secret};
use proto_api::sha256_hex;
use serde::{Deserialize, Serialize};

use super::limits::{self, DiskFieldError};
use super::portal::Portal;
use crate::disk::ProgramRun;

/// Exit code of iscsiadm if the session exists.
const SESSION_EXISTS: &[i32] = &[15];
/// Exit code of iscsiadm if there is no object to act on.
const NO_OBJECTS: &[i32] = &[21];
const ISCSI: &str = "iscsiadm";
/// The default interface of iscsiadm.
const DEFAULT: &str = "default";
/// Name prefix of interfaces created for an initiator name.
const OWN: &str = "volume-";
/// The field with the first portal.
const TARGET_PORTAL: &str = "iscsi.targetPortal";
/// The field with further portals.
pub(super) const PORTALS: &str = "iscsi.portals";
/// Most portals that are recorded for one disk, of all volumes that name it.
const RECORDED_PORTALS_MAX: usize = 128;
/// Settings of iscsiadm that a secret may have, as in Kubernetes: no other setting is a volume's to make.
const CHAP_SETTINGS: [&str; 8] = [
    "discovery.sendtargets.auth.username",
    "discovery.sendtargets.auth.password",
    "discovery.sendtargets.auth.username_in",
    "discovery.sendtargets.auth.password_in",
    "node.session.auth.username",
    "node.session.auth.password",
    "node.session.auth.username_in",
    "node.session.auth.password_in",
];

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

/// The portals in their one form, without duplicates.
fn portals(first: &str, others: &[String]) -> Result<Vec<String>, DiskFieldError> {
    const EXPECTED: &str = "must be HOST, HOST:PORT or [IPv6]:PORT, with a host name, an address, and a port without leading zeros";
    let (mut all, mut seen) = (Vec::new(), BTreeSet::new());
    let each = others.iter().map(|portal| (PORTALS, portal.as_str()));
    for (field, text) in std::iter::once((TARGET_PORTAL, first)).chain(each) {
        let portal = Portal::parse(text);
        let portal = portal.ok_or_else(|| DiskFieldError::invalid(field, text, EXPECTED))?;
        let portal = portal.to_string();
        if seen.insert(portal.clone()) {
            all.push(portal);
        }
    }
    Ok(all)
}

fn interface(name: &str) -> String {
    if name.is_empty() { DEFAULT.to_owned() } else { name.to_owned() }
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
    /// A value of the secret is more than one line; iscsiadm would keep the others as further settings.
    #[error("{0} in the secret has control characters")]
    Password(&'static str),
}

impl Iscsi {
    /// The disk that a source describes.
    ///
    /// # Errors
    /// A field has more than is supported.
    pub(super) fn from_source(
        source: &ISCSIPersistentVolumeSource,
    ) -> Result<Self, DiskFieldError> {
        let initiator = source.initiator_name.clone().unwrap_or_default();
        limits::check_text(TARGET_PORTAL, &source.target_portal)?;
        limits::check_list(PORTALS, &source.portals)?;
        limits::check_target("iscsi.iqn", &source.iqn)?;
        limits::check_interface("iscsi.iscsiInterface", &source.iscsi_interface, OWN)?;
        limits::check_target("iscsi.initiatorName", &initiator)?;
        let secret = source.secret_ref.as_ref();
        let name = format!("{}:{}:{}", source.target_portal, source.iqn, source.lun);
        let interface = match interface(&source.iscsi_interface) {
            default if default == DEFAULT && !initiator.is_empty() => {
                let own = sha256_hex(format!("{initiator} {name}").as_bytes());
                // Interface names of iscsiadm have at most 64 characters.
                format!("{OWN}{}", own.get(..32).unwrap_or(&own))
            }
            named => named,
        };
        Ok(Self {
            name,
            portals: portals(&source.target_portal, &source.portals)?,
            iqn: source.iqn.clone(),
            lun: source.lun,
            interface,
            initiator,
            chap_discovery: source.chap_auth_discovery,
            chap_session: source.chap_auth_session,
            secret: secret.map(|secret| (secret.namespace.clone(), secret.name.clone())),
        })
    }

    /// Commands that log in to the target after [`Iscsi::prepare`], per portal; one successful portal is enough.
    ///
    /// # Errors
    /// The secret is missing or has a password of several lines, or the initiator name is invalid.
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

    /// Names of the disk, those through the first portal first.
    #[must_use]
    pub fn every_link(&self) -> Vec<String> {
        self.portals.iter().flat_map(|portal| self.links(portal)).collect()
    }

    /// Names of the disk through one portal.
    #[must_use]
    pub fn links(&self, portal: &str) -> Vec<String> {
        let lun = self.lun.to_string();
        let shown =
            Portal::parse(portal).map(|portal| portal.disk_name_forms()).unwrap_or_default();
        let shown = if shown.is_empty() { vec![portal.to_owned()] } else { shown };
        shown.iter().map(|portal| self.link_of(portal, &lun)).collect()
    }

    /// Wildcard names of all disks of the sessions that one portal may lead to: those through any portal, unless it is an address.
    #[must_use]
    pub fn links_of_session(&self, portal: &str) -> Vec<String> {
        match Portal::parse(portal).map(|portal| portal.disk_name_forms()).unwrap_or_default() {
            any if any.is_empty() => vec![format!("by-path/*ip-*-iscsi-{}-lun-*", self.iqn)],
            shown => shown.iter().map(|portal| self.link_of(portal, "*")).collect(),
        }
    }

    fn link_of(&self, portal: &str, lun: &str) -> String {
        // With an offload interface the name has a prefix.
        let start = if self.interface == DEFAULT { "ip-" } else { "*ip-" };
        format!("by-path/{start}{portal}-iscsi-{}-lun-{lun}", self.iqn)
    }

    /// Whether the disk may use the session of `other` through a portal. Of a record with a portal in another form it is not known.
    #[must_use]
    pub fn shares_session(&self, other: &Self, portal: &str) -> bool {
        let asked = Portal::parse(portal);
        let may_be = |own: &String| match (Portal::parse(own), &asked) {
            (Some(own), Some(asked)) => own.may_be(asked),
            _ => true,
        };
        (&self.iqn, &self.interface) == (&other.iqn, &other.interface)
            && self.portals.iter().any(may_be)
    }

    /// Whether `other` is the same unit of the same target, by whatever interface.
    #[must_use]
    pub fn is_same_disk(&self, other: &Self) -> bool {
        (&self.iqn, self.lun) == (&other.iqn, other.lun)
    }

    /// Whether `other` is the same unit of the same target, by the same interface.
    #[must_use]
    pub fn is_same_unit(&self, other: &Self) -> bool {
        (&self.iqn, self.lun, &self.interface) == (&other.iqn, other.lun, &other.interface)
    }

    /// Adds portals of another volume with this disk, as long as there is room. The first portal is a part of the disk's name, and so
    /// always in common.
    pub fn add_portals(&mut self, other: &Self) {
        let known: BTreeSet<&String> = self.portals.iter().collect();
        let room = RECORDED_PORTALS_MAX.saturating_sub(self.portals.len());
        let more = other.portals.iter().filter(|portal| !known.contains(portal));
        let more: Vec<String> = more.take(room).cloned().collect();
        self.portals.extend(more);
    }

    /// The disk by those of its portals that are recorded.
    #[must_use]
    pub fn by_portals_of(&self, recorded: &Self) -> Self {
        let known: BTreeSet<&String> = recorded.portals.iter().collect();
        let portals = self.portals.iter().filter(|portal| known.contains(portal));
        Self { portals: portals.cloned().collect(), ..self.clone() }
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

    /// Settings of iscsiadm from the secret; its keys are the names of the settings, others are ignored.
    fn passwords(&self, secret: Option<&Secret>) -> Result<BTreeMap<String, String>, IscsiError> {
        if !self.chap_discovery && !self.chap_session {
            return Ok(BTreeMap::new());
        }
        let secret = secret.ok_or_else(|| {
            let (namespace, name) = self.secret.clone().unwrap_or_default();
            IscsiError::Secret { namespace, name }
        })?;
        let mut all = BTreeMap::new();
        for key in CHAP_SETTINGS {
            let value = secret.data.get(key).map(|value| std::str::from_utf8(value));
            let Some(Ok(value)) = value else { continue };
            let value = value.trim_end_matches(['\n', '\r']);
            if value.chars().any(char::is_control) {
                return Err(IscsiError::Password(key));
            }
            all.insert(key.to_owned(), value.to_owned());
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> Iscsi {
        Iscsi {
            portals: portals("10.0.0.1", &["[fd00::1]:99".into(), "10.0.0.1:3260".into()]).unwrap(),
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
        let second = Iscsi { lun: 8, portals: portals("10.0.0.1", &[]).unwrap(), ..disk.clone() };
        assert!(
            second.shares_session(&disk, "10.0.0.1:3260")
                && !second.shares_session(&disk, "[fd00::1]:99")
        );
        let named = Iscsi { interface: "own".into(), ..second.clone() };
        let elsewhere = Iscsi { iqn: "other".into(), ..second };
        assert!(
            ![named, elsewhere].iter().any(|other| other.shares_session(&disk, "10.0.0.1:3260"))
        );
        assert!(disk.links_of_session("10.0.0.1:3260")[0].ends_with(":x-lun-*"));
        assert_eq!(
            disk.links_of_session("san:3260"),
            [format!("by-path/*ip-*-iscsi-{}-lun-*", disk.iqn)]
        );
        let links = disk.every_link();
        assert_eq!(links[0], "by-path/ip-10.0.0.1:3260-iscsi-iqn.2003-04.com.example:x-lun-7");
    }

    #[test]
    fn portals_of_several_volumes_with_one_disk_are_bounded_together() {
        let mut recorded = disk();
        let many = (0..300).map(|number| format!("10.1.{}.{}:3260", number / 100, number % 100));
        let many = portals("10.0.0.1", &many.collect::<Vec<_>>()).unwrap();
        let other = Iscsi { portals: many, ..disk() };
        recorded.add_portals(&other);
        recorded.add_portals(&other);
        assert_eq!(recorded.portals[..2], disk().portals, "those that were there come first");
        assert_eq!(recorded.portals.len(), RECORDED_PORTALS_MAX);
        let used = other.by_portals_of(&recorded).portals;
        assert_eq!((used.len(), used[0].as_str()), (RECORDED_PORTALS_MAX - 1, "10.0.0.1:3260"));
        assert!(other.is_same_unit(&recorded));
        assert!(!Iscsi { lun: 8, ..disk() }.is_same_unit(&recorded));
    }

    #[test]
    fn passwords_come_from_the_secret() {
        let name = Some(("ns".to_owned(), "chap".to_owned()));
        let disk = Iscsi { chap_session: true, secret: name, ..disk() };
        assert_eq!(disk.log_in(None).unwrap_err().to_string(), "secret \"ns/chap\" not found");
        let mut secret = Secret::default();
        let own = "discovery.sendtargets.auth.username";
        for (key, value) in
            [("node.session.auth.username", "u"), (own, "y"), ("node.startup", "automatic")]
        {
            secret.data.insert(key.into(), value.into());
        }
        let runs = shown(&disk.log_in(Some(&secret)).unwrap()[0]);
        let at = "-p 10.0.0.1:3260 -T IQN -I default -o update -n";
        assert!(runs.contains(&format!("{at} node.session.auth.authmethod -v CHAP")), "{runs:?}");
        assert!(runs.contains(&format!("{at} node.session.auth.username -v u")));
        assert!(!runs.iter().any(|run| run.contains("discovery.")), "not wanted: {runs:?}");
        assert!(!runs.iter().any(|run| run.contains("automatic")), "no password: {runs:?}");
        let asked = Iscsi { chap_discovery: true, chap_session: false, ..disk };
        let runs = shown(&asked.log_in(Some(&secret)).unwrap()[0]);
        let found = [
            "-t sendtargets -p 10.0.0.1:3260 -I default -o update -n discovery.sendtargets.auth.username -v y",
            "-t sendtargets -p 10.0.0.1:3260 -I default --discover",
        ];
        assert!(runs.windows(2).any(|two| two == found), "{runs:?}");
        assert!(!runs.iter().any(|run| run.contains("node.session")), "{runs:?}");
    }

    /// iscsiadm keeps settings line by line.
    #[test]
    fn a_password_is_one_line() {
        let disk = Iscsi { chap_session: true, ..disk() };
        let mut secret = Secret::default();
        let key = "node.session.auth.password";
        secret.data.insert(key.into(), "p w\n".into());
        let runs = shown(&disk.log_in(Some(&secret)).unwrap()[0]);
        assert!(runs.iter().any(|run| run.ends_with(&format!("{key} -v p w"))), "{runs:?}");
        secret.data.insert(key.into(), "p\nnode.startup = automatic".into());
        let refused = disk.log_in(Some(&secret)).map(drop).unwrap_err().to_string();
        assert_eq!(refused, format!("{key} in the secret has control characters"));
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
        let named = Iscsi::from_source(&source("default")).unwrap();
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
        let named = Iscsi::from_source(&source("bnx2i.0")).unwrap();
        assert!(matches!(named.log_in(None), Err(IscsiError::Initiator(_))));
    }
}
