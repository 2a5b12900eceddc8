//! The pod network of this node: the CNI configuration made from the Node's pod CIDRs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_host::bridge;
use proto_api::core::v1::Node;
use proto_daemon::exit::chain;
use proto_daemon::private_files;
use serde_json::{Value, json};
use tokio::sync::watch;

/// File name of the configuration; sorts before other CNI configurations.
const FILE_NAME: &str = "10-orch.conflist";
/// Bridge of the node's pods.
const BRIDGE: &str = "cni0";

/// The configuration for pod CIDRs: a bridge with addresses from the range, and host ports. Traffic
/// that leaves the cluster is masqueraded by kube-proxy's tables, not by an iptables process per
/// pod. Pure.
pub fn conflist(pod_cidrs: &[String], shaping: Shaping) -> Value {
    let ranges: Vec<Value> = pod_cidrs.iter().map(|cidr| json!([{ "subnet": cidr }])).collect();
    let routes: Vec<Value> = pod_cidrs
        .iter()
        .map(|cidr| json!({ "dst": if cidr.contains(':') { "::/0" } else { "0.0.0.0/0" } }))
        .collect();
    let mut plugins = vec![
        json!({
            "type": "bridge",
            "bridge": BRIDGE,
            "isGateway": true,
            "hairpinMode": true,
            "ipam": { "type": "host-local", "ranges": ranges, "routes": routes },
        }),
        json!({ "type": "portmap", "capabilities": { "portMappings": true } }),
    ];
    if shaping == Shaping::Installed {
        plugins.push(json!({ "type": "bandwidth", "capabilities": { "bandwidth": true } }));
    }
    json!({ "cniVersion": "0.4.0", "name": "orch", "plugins": plugins })
}

/// Whether the bandwidth plugin is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shaping {
    Installed,
    /// It is missing: bandwidth annotations have no effect.
    Missing,
}

/// Directories in which runtimes look for CNI plugins.
const PLUGIN_DIRS: [&str; 2] = ["/opt/cni/bin", "/usr/lib/cni"];

/// Whether every directory with the bridge plugin also has the bandwidth plugin. The directory that
/// the runtime uses is not known, and a missing plugin would leave pods without a network.
fn shaping(dirs: &[&str]) -> Shaping {
    let has = |dir: &&str, plugin: &str| Path::new(dir).join(plugin).exists();
    let mut with_bridge = dirs.iter().filter(|dir| has(dir, "bridge")).peekable();
    let found = with_bridge.peek().is_some() && with_bridge.all(|dir| has(dir, "bandwidth"));
    if found { Shaping::Installed } else { Shaping::Missing }
}

/// Writes the configuration atomically unless it is already there.
///
/// # Errors
/// The directory cannot be written.
pub fn write(dir: &Path, pod_cidrs: &[String]) -> std::io::Result<()> {
    let text = format!("{:#}\n", conflist(pod_cidrs, shaping(&PLUGIN_DIRS)));
    let path = dir.join(FILE_NAME);
    if std::fs::read_to_string(&path).is_ok_and(|known| known == text) {
        return Ok(());
    }
    private_files::create_trusted_dir(dir)?;
    // The runtime reads only files that end in .conflist.
    private_files::write_atomically(&path, text.as_bytes(), 0o644)
}

/// Writes the configuration once the Node's pod CIDRs are known, and whenever they change.
pub async fn follow(dir: PathBuf, mut node: watch::Receiver<Option<Arc<Node>>>) {
    let mut written: Vec<String> = Vec::new();
    loop {
        let known = node.borrow_and_update().clone();
        let cidrs = known.map(|node| pod_cidrs(&node)).unwrap_or_default();
        if !cidrs.is_empty() && cidrs != written {
            // The bridge first: the runtime starts pods as soon as the configuration exists.
            if let Err(error) = bridge::ensure_bridge(BRIDGE, &gateways(&cidrs)).await {
                tracing::warn!(
                    error = chain(&error),
                    "cannot create the pods' bridge; the CNI plugin will create it"
                );
            }
            match write(&dir, &cidrs) {
                Ok(()) => written = cidrs,
                Err(error) => {
                    tracing::warn!(dir = %dir.display(), %error, "cannot write the CNI configuration; pods have no network until the Node changes");
                }
            }
        }
        if node.changed().await.is_err() {
            return;
        }
    }
}

/// The bridge's addresses as assigned by the plugin: the first of each range after the network
/// address.
fn gateways(cidrs: &[String]) -> Vec<(IpAddr, u8)> {
    let gateway = |cidr: &String| {
        let (address, prefix_len) = cidr.split_once('/')?;
        let first = match address.parse().ok()? {
            IpAddr::V4(v4) => Ipv4Addr::from(u32::from(v4).wrapping_add(1)).into(),
            IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6).wrapping_add(1)).into(),
        };
        Some((first, prefix_len.parse().ok()?))
    };
    cidrs.iter().filter_map(gateway).collect()
}

fn pod_cidrs(node: &Node) -> Vec<String> {
    let one = Some(node.spec.pod_cidr.clone()).filter(|cidr| !cidr.is_empty());
    if node.spec.pod_cidrs.is_empty() {
        one.into_iter().collect()
    } else {
        node.spec.pod_cidrs.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_have_a_range_and_a_route() {
        let cidrs = ["10.1.0.0/24".into(), "fd00:1::/64".into()];
        let value = conflist(&cidrs, Shaping::Missing);
        assert_eq!(value["plugins"].as_array().map(Vec::len), Some(2));
        let ipam = &value["plugins"][0]["ipam"];
        assert_eq!(ipam["ranges"][1][0]["subnet"], "fd00:1::/64");
        assert_eq!(ipam["routes"][0]["dst"], "0.0.0.0/0");
        assert_eq!(ipam["routes"][1]["dst"], "::/0");
    }

    #[test]
    fn traffic_is_shaped_where_every_runtime_finds_the_plugin() {
        let (full, poor) = (tempfile::tempdir().expect("dir"), tempfile::tempdir().expect("dir"));
        for (dir, plugin) in [(&full, "bridge"), (&full, "bandwidth"), (&poor, "bridge")] {
            std::fs::write(dir.path().join(plugin), "").expect("write");
        }
        let [full, poor] = [&full, &poor].map(|dir| dir.path().to_str().expect("text"));
        assert_eq!(shaping(&[full, "/nonexistent"]), Shaping::Installed);
        assert_eq!(shaping(&[full, poor]), Shaping::Missing);
        assert_eq!(shaping(&["/nonexistent"]), Shaping::Missing);
        let value = conflist(&["10.1.0.0/24".into()], Shaping::Installed);
        assert_eq!(value["plugins"][2]["type"], "bandwidth");
    }

    #[test]
    fn the_bridge_has_the_first_address_of_each_range() {
        let cidrs = ["10.244.3.0/24".to_owned(), "fd00:1::/64".into(), "nonsense".into()];
        let expected = [("10.244.3.1", 24), ("fd00:1::1", 64)];
        assert_eq!(gateways(&cidrs), expected.map(|(a, len)| (a.parse().expect("address"), len)));
    }

    #[test]
    fn a_file_that_is_right_is_not_written_again() {
        let dir = tempfile::tempdir().expect("tempdir");
        let cidrs = ["10.1.0.0/24".to_owned()];
        write(dir.path(), &cidrs).expect("write");
        let path = dir.path().join(FILE_NAME);
        let before = std::fs::metadata(&path).expect("file").modified().expect("time");
        write(dir.path(), &cidrs).expect("again");
        assert_eq!(std::fs::metadata(&path).expect("file").modified().expect("time"), before);
        assert_eq!(std::fs::read_dir(dir.path()).expect("dir").count(), 1);
    }
}
