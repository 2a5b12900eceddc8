//! Certificates, keys and reset on Docker nodes: hosts whose roots are Debian's own and nothing else.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::Cluster;
use super::daemon::Daemon;

/// Directories of a host that a reset leaves as Debian has them.
const DIRS: [&str; 7] = ["/etc", "/opt", "/root", "/srv", "/tmp", "/usr", "/var"];
/// What Docker, the node's first process and the container runtime make there.
const OTHERS: [&str; 9] = [
    "/etc/cni",
    "/etc/containerd",
    "/etc/docker-node",
    "/etc/hostname",
    "/etc/hosts",
    "/etc/mtab",
    "/opt/containerd",
    "/var/log/containerd.log",
    "/tmp/",
];

impl Cluster {
    /// New certificates and a new key of service accounts, while pods reach each other.
    pub(super) async fn renew(&self, daemon: &Daemon) -> Result<()> {
        let first = self.nodes[0].as_str();
        let adm = |words: &[&str]| self.docker.run_on(first, &[&["orchadm"], words].concat());
        let sums = || {
            let pki = "/etc/kubernetes/pki";
            let files = ["apiserver.crt", "apiserver.key", "front-proxy-client.key", "sa.key"];
            let paths = files.map(|file| format!("{pki}/{file}"));
            let line = [&["sha256sum"], &paths.each_ref().map(String::as_str)[..]].concat();
            let said = self.docker.run_on(first, &line)?;
            Ok::<Vec<String>, anyhow::Error>(said.lines().map(str::to_owned).collect())
        };
        let before = sums()?;
        adm(&["certs", "renew", "all", "--restart"])?;
        let renewed = sums()?;
        let same = |nth: usize| before.get(nth) == renewed.get(nth);
        ensure!(!same(0) && !same(1) && !same(2), "files are the old ones: {renewed:?}");
        ensure!(same(3), "the key of service accounts is another");
        let text = adm(&["certs", "check-expiration", "-o", "json"])?;
        let value: Value = serde_json::from_str(&text)?;
        let left = value["certificates"][0]["residualTime"].as_i64().context("a time")?;
        ensure!((31_000_000..31_600_000).contains(&left), "{text}");
        self.pods_reach_each_other(daemon, "after certificates were renewed").await?;
        adm(&["certs", "rotate-sa", "--restart"])?;
        adm(&["certs", "rotate-sa", "--forget-old", "--restart"])?;
        ensure!(sums()?.get(3) != before.get(3), "the key of service accounts is the old one");
        self.pods_reach_each_other(daemon, "after the key of service accounts was rotated").await
    }

    /// A node that is reset has the files of the image that it was made of.
    pub(super) fn reset_a_node(&self) -> Result<()> {
        let node = self.nodes[2].as_str();
        self.docker.run_on(node, &["orchadm", "reset", "--force"])?;
        let listed = |said: &str| -> BTreeSet<String> {
            let is_own = |path: &&str| !OTHERS.iter().any(|other| path.starts_with(other));
            said.lines().filter(is_own).map(str::to_owned).collect()
        };
        // containerd removes layers meanwhile, and a directory that is gone makes find fail.
        let skip = ["-xdev", "-path", "/var/lib/containerd", "-prune", "-o", "-print"];
        let find = [&["find"], &DIRS[..], &skip].concat();
        let now = listed(&self.docker.run_on(node, &find)?);
        let image = ["run", "--rm", "--network=none", "--entrypoint=find", "orch-node"];
        let output = self.docker.docker(&[&image, &find[1..]].concat()).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "listing the image: {said}");
        let fresh = listed(&String::from_utf8_lossy(&output.stdout));
        ensure!(fresh.contains("/usr/local/bin/orchadm"), "the image has no programs");
        let new: Vec<&String> = now.difference(&fresh).collect();
        let gone: Vec<&String> = fresh.difference(&now).collect();
        ensure!(new.is_empty() && gone.is_empty(), "{node}: new {new:?}, gone {gone:?}");
        let left = self.docker.run_on(node, &["sh", "-c", "pgrep -l orch; ip -o link; true"])?;
        let is_left = |word: &&str| left.contains(word);
        let found: Vec<&str> =
            ["orchlet", "orch-proxy", "cni0", "veth"].into_iter().filter(is_left).collect();
        ensure!(found.is_empty(), "{found:?} are left on {node}: {left}");
        Ok(())
    }
}
