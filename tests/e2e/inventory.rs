//! Everything that a node has, by name, to find what is left over.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result};
use orch_tests::wait::until;

use crate::context::{Context, PATIENCE};

/// Names of everything that pods leave traces in, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory(BTreeMap<&'static str, BTreeSet<String>>);

/// Shell commands that list things in the node's namespaces, one a line. None of them fails for want of something to list.
const LISTS: [(&str, &str); 5] = [
    ("mounts", "cut -d' ' -f5 /proc/self/mountinfo | sort | uniq -c"),
    ("network namespaces", "ls -1 /run/netns 2>/dev/null || true"),
    ("links", "ls -1 /sys/class/net"),
    ("address leases", "find /var/lib/cni -type f ! -name '*lock*' ! -name 'last_reserved*'"),
    ("log directories", "ls -1 /var/log/pods; ls -1 /var/log/containers"),
];

impl Inventory {
    /// Looks at the first node.
    pub async fn take(c: &Context) -> Result<Inventory> {
        let mut all = BTreeMap::new();
        for (kind, script) in LISTS {
            all.insert(kind, lines(&c.on_node(&["sh", "-c", script]).await?));
        }
        let socket = c.spec.containerd_socket("node-1");
        let socket = socket.to_str().context("a socket path in UTF-8")?;
        for (kind, words) in [
            ("containers and sandboxes", ["containers", "ls"]),
            ("tasks", ["tasks", "ls"]),
            ("leases of the runtime", ["leases", "ls"]),
        ] {
            let argv = [&["ctr", "-a", socket, "-n", "k8s.io"], &words[..], &["-q"]].concat();
            all.insert(kind, lines(&c.on_node(&argv).await?));
        }
        let snapshots = ["ctr", "-a", socket, "-n", "k8s.io", "snapshots", "ls"];
        // The layers of images stay as long as their images.
        let active = |line: &&str| line.contains("Active");
        let snapshots = c.on_node(&snapshots).await?;
        all.insert("snapshots", snapshots.lines().filter(active).map(str::to_owned).collect());
        all.insert("cgroups", cgroups(&c.spec.node_cgroup("node-1")));
        let root = c.spec.node_dir("node-1").join("orchlet");
        all.insert("pod directories", names_in(&root.join("pods")));
        all.insert("shims", shims(c)?);
        Ok(Inventory(all))
    }

    /// How many of each kind.
    pub fn counts(&self) -> String {
        let one = |(kind, names): (&&str, &BTreeSet<String>)| format!("{} {kind}", names.len());
        self.0.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    /// What is here and was not in `before`, in words; empty when there is nothing.
    pub fn beyond(&self, before: &Inventory) -> String {
        let new = self.0.iter().flat_map(|(kind, names)| {
            let known = before.0.get(kind);
            let new = names.iter().filter(move |name| known.is_none_or(|k| !k.contains(*name)));
            new.map(move |name| format!("{kind}: {name}"))
        });
        new.collect::<Vec<_>>().join("\n    ")
    }

    /// Waits until nothing is on the node that was not in this inventory.
    pub async fn nothing_left(&self, c: &Context) -> Result<Inventory> {
        until("nothing is left", PATIENCE, async || {
            let now = Inventory::take(c).await.map_err(|e| format!("{e:#}"))?;
            let left = now.beyond(self);
            if left.is_empty() { Ok(now) } else { Err(left) }
        })
        .await
    }
}

fn lines(text: &str) -> BTreeSet<String> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

fn names_in(dir: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The cgroups of the node's pods in every hierarchy; those of their classes come with the first pod of a class and stay.
fn cgroups(node: &str) -> BTreeSet<String> {
    let top = Path::new("/sys/fs/cgroup");
    let hierarchies = std::fs::read_dir(top).into_iter().flatten().flatten();
    let roots = hierarchies.map(|entry| entry.path()).chain([top.to_owned()]);
    let mut found = BTreeSet::new();
    let mut open: Vec<_> =
        roots.map(|root| root.join(node.trim_start_matches('/'))).filter(|g| g.is_dir()).collect();
    while let Some(group) = open.pop() {
        let children = std::fs::read_dir(&group).into_iter().flatten().flatten();
        open.extend(children.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
        let path = group.display().to_string();
        if path.contains("/pod") {
            found.insert(path);
        }
    }
    found
}

/// Pids of the runtime's shims on the node.
fn shims(c: &Context) -> Result<BTreeSet<String>> {
    let holder = cluster::namespaces::find(&c.spec, "node-1").context("node-1 does not run")?;
    let own = std::fs::read_link(format!("/proc/{}/ns/mnt", holder.identity.pid))?;
    let is_shim = |pid: &i32| {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        comm.starts_with("containerd-shim")
            && std::fs::read_link(format!("/proc/{pid}/ns/mnt")).is_ok_and(|ns| ns == own)
    };
    let pids = cluster::processes::all_pids()?;
    Ok(pids.into_iter().filter(is_shim).map(|pid| pid.to_string()).collect())
}
