//! The rules of the tree: which crate may import which, which crates are pure, where `unsafe` and brand names are allowed. Each rule is a sentence in
//! ARCHITECTURE.md; a failure names the file and the rule.

#![allow(clippy::expect_used, reason = "this file is a test")]

mod boundaries;
mod claims;
mod crates;
mod dependencies;
mod document_references;
mod documentation;
mod errors;
mod files;
mod language;
mod operations;
mod spec_coverage;
mod structs;
mod type_names;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Production lines that a file may have before it must be split.
const FILE_LINES_MAX: usize = 600;

/// Names of other software that look like the brand's, with the reason why they stand where they do.
const OTHERS_NAMES: &[(&str, &str, &str)] = &[
    (
        "agent/images/src/provider.rs",
        "CREDENTIAL_PLUGINS",
        "credential plugins and their configuration are the other agent's, in both profiles",
    ),
    (
        "agent/runtime/src/cri.rs",
        "CRI_NAMESPACE",
        "containerd's own name for what its CRI plugin keeps",
    ),
    (
        "apiserver-lite/http/src/websocket.rs",
        "binary.k8s.io",
        "subprotocols that WebSocket clients of both profiles offer",
    ),
    (
        "apiserver-lite/orchctl-streams/src/exec.rs",
        "channel.k8s.io",
        "the subprotocol of container runtimes, in both profiles",
    ),
    (
        "apiserver-lite/orchctl-streams/src/forward.rs",
        "portforward.k8s.io",
        "the subprotocol of container runtimes, in both profiles",
    ),
    (
        "apiserver-lite/orchctl-client/src/session.rs",
        "Some(\"k8s.io\")",
        "the end of a server's groups tells its profile",
    ),
    (
        "apiserver-lite/core/src/versions.rs",
        "METRICS_ANNOTATION",
        "the conversion of autoscalers has no names at hand; one annotation serves both profiles",
    ),
    (
        "agent/config/src/settings.rs",
        "KubeletConfiguration",
        "the configuration file of the other agent is accepted in both profiles",
    ),
    (
        "apiserver-lite/rbac/src/bootstrap.rs",
        "(\"k8s.io\", names.",
        "the policy is kept with Kubernetes' names, which are replaced by those of the profile",
    ),
    (
        "apiserver-lite/rbac/src/bootstrap.rs",
        "(\"kubernetes.io\", names.",
        "the policy is kept with Kubernetes' names, which are replaced by those of the profile",
    ),
    (
        "apiserver-lite/rbac/src/bootstrap.rs",
        "(\"kube-system\", names.",
        "the policy is kept with Kubernetes' names, which are replaced by those of the profile",
    ),
];

/// Crates that decide may not reach these, directly.
const IMPURE: &[&str] = &[
    "tokio",
    "hyper",
    "hyper-util",
    "tonic",
    "nix",
    "rustix",
    "libc",
    "rand",
    "uuid",
    "redb",
    "procfs",
    "netlink-sys",
    "rtnetlink",
    "notify",
];

const COMPONENTS: &[&str] = &["agent", "proxy", "apiserver-lite"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

struct Package {
    name: String,
    component: String,
    /// Folder of its manifest, below the root.
    dir: String,
    kind: String,
    /// Of the crate itself, without those of its tests and build script.
    dependencies: Vec<String>,
    all_dependencies: Vec<String>,
}

/// What cargo says of the workspace's packages.
fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .current_dir(root())
        .output()
        .expect("cargo metadata");
    serde_json::from_slice(&output.stdout).expect("cargo's JSON")
}

fn packages() -> Vec<Package> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of = |package: &Value| {
        let manifest = PathBuf::from(text(&package["manifest_path"]));
        let below = manifest.strip_prefix(root()).expect("inside the workspace").to_owned();
        let normal = |dependency: &&Value| dependency["kind"].is_null();
        let dependencies = package["dependencies"].as_array().expect("a list");
        Package {
            name: text(&package["name"]),
            component: below.iter().next().expect("a folder").to_string_lossy().into_owned(),
            dir: below.parent().expect("a folder").to_string_lossy().into_owned(),
            kind: text(&package["metadata"]["orch"]["kind"]),
            dependencies: dependencies.iter().filter(normal).map(|d| text(&d["name"])).collect(),
            all_dependencies: dependencies.iter().map(|d| text(&d["name"])).collect(),
        }
    };
    metadata()["packages"].as_array().expect("a list").iter().map(of).collect()
}

fn sources() -> Vec<(String, String)> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"])
        .current_dir(root())
        .output()
        .expect("git ls-files");
    let list = String::from_utf8(output.stdout).expect("paths in UTF-8");
    let read = |path: &str| Some((path.to_owned(), fs::read_to_string(root().join(path)).ok()?));
    list.lines().filter_map(read).collect()
}

fn is_test(path: &str) -> bool {
    path.starts_with("tests/")
        || path.contains("/tests/")
        || path.ends_with("/tests.rs")
        || path.contains("/benches/")
        || path.contains("/examples/")
}

fn is_generated(path: &str) -> bool {
    path.contains("/gen/") || path.contains("/generated/")
}

/// The part of a file before its test module.
fn production(source: &str) -> &str {
    source.split("#[cfg(test)]").next().unwrap_or(source)
}

fn check(rule: &str, offenders: Vec<String>) {
    assert!(offenders.is_empty(), "{rule}:\n  {}", offenders.join("\n  "));
}

#[test]
fn components_never_import_each_other() {
    let all = packages();
    let component = |name: &str| all.iter().find(|p| p.name == *name).map(|p| p.component.as_str());
    let mut offenders = Vec::new();
    for package in all.iter().filter(|p| COMPONENTS.contains(&p.component.as_str())) {
        for dependency in &package.dependencies {
            let other = component(dependency).unwrap_or("proto");
            if other != "proto" && other != package.component {
                offenders.push(format!("{} imports {dependency}", package.name));
            }
        }
    }
    for package in all.iter().filter(|p| p.component == "proto") {
        let foreign = |d: &&String| component(d).is_some_and(|other| other != "proto");
        offenders.extend(
            package
                .dependencies
                .iter()
                .filter(foreign)
                .map(|d| format!("{} imports {d}", package.name)),
        );
    }
    check("agent, proxy and apiserver-lite share only what lies in proto", offenders);
}

#[test]
fn pure_crates_reach_no_io() {
    let all = packages();
    let kind = |name: &str| all.iter().find(|p| p.name == *name).map_or("", |p| p.kind.as_str());
    let mut offenders = Vec::new();
    for package in all.iter().filter(|p| p.kind == "pure") {
        for dependency in &package.dependencies {
            if IMPURE.contains(&dependency.as_str()) || matches!(kind(dependency), "io" | "bin") {
                offenders.push(format!("{} imports {dependency}", package.name));
            }
        }
    }
    check("a pure crate imports only pure crates", offenders);
    let unkind: Vec<String> = all
        .iter()
        .filter(|p| p.kind.is_empty() && p.component != "tests")
        .map(|p| p.name.clone())
        .collect();
    check("every manifest says its kind in package.metadata.orch", unkind);
}

#[test]
fn unsafe_stays_in_sys_files() {
    let offends = |(path, source): &(String, String)| {
        let keyword = concat!("unsa", "fe ");
        !path.ends_with("/sys.rs")
            && source.lines().any(|line| {
                let code = line.trim_start();
                !code.starts_with("//")
                    && (code.contains(&format!("{keyword}{{"))
                        || code.contains(&format!("{keyword}fn")))
            })
    };
    check(
        "unsafe stands only in sys.rs",
        sources().iter().filter(|s| offends(s)).map(|s| s.0.clone()).collect(),
    );
}

#[test]
fn brand_names_come_from_one_file() {
    let brands = [
        concat!("kubernetes", ".io"),
        concat!("k8s", ".io"),
        concat!("orch", ".io"),
        concat!("kube", "-system"),
    ];
    let mut offenders = Vec::new();
    for (path, source) in sources() {
        if is_test(&path)
            || is_generated(&path)
            || path.ends_with("proto/api/src/names.rs")
            || path.starts_with("hack/")
        {
            continue;
        }
        for (number, line) in production(&source).lines().enumerate() {
            let code =
                line.split("//").next().unwrap_or_default().replace("csi.storage.k8s.io", "");
            let is_listed = |other: &&(&str, &str, &str)| other.0 == path && code.contains(other.1);
            let listed = OTHERS_NAMES.iter().any(|other| is_listed(&other));
            if !listed && brands.iter().any(|brand| code.contains(brand)) {
                offenders.push(format!("{path}:{}", number + 1));
            }
        }
    }
    check("brand names come from proto/api/src/names.rs", offenders);
}

/// Where volumes are handled: only a descriptor leads below a volume's root.
const VOLUME_CODE: &[&str] = &[
    "agent/volume/src/",
    "agent/csi/src/",
    "agent/node-volumes/src/volumes.rs",
    "agent/node-volumes/src/persistent_volumes.rs",
    "agent/node-volumes/src/persistent_volumes/",
    "agent/node-volumes/src/volumes/",
    "agent/node-volumes/src/csi_node.rs",
    "agent/orchlet/src/eviction/measure.rs",
    "agent/server/src/measure.rs",
    "agent/host/src/disk_usage.rs",
];

/// Paths that volume code opens by name, each with the reason why only the agent can change where it leads.
const NAMES_OPENED: &[(&str, &str, &str)] = &[
    (
        "agent/volume/src/beneath.rs",
        "CWD",
        "the agent's own directory, and roots that a node's owner names",
    ),
    ("agent/volume/src/host_path.rs", "CWD", "a path of the node is a root itself"),
    (
        "agent/volume/src/host_path.rs",
        "/proc/self/fd/",
        "the kernel's own link to an open descriptor",
    ),
    ("agent/volume/src/pod_volumes.rs", "(&self.pods)", "the agent's own directory"),
    (
        "agent/volume/src/tree.rs",
        "std::fs::File",
        "a type; what it is made from was opened beneath",
    ),
    (
        "agent/volume/src/renewals.rs",
        "std::fs::File",
        "a type; what it is made from was opened beneath",
    ),
    (
        "agent/volume/src/shared_mounts.rs",
        "std::fs::File",
        "a type; what it is made from was opened beneath",
    ),
    ("agent/volume/src/shared_mounts.rs", "fstatvfs(", "asked of what is open"),
    ("agent/volume/src/devices.rs", "CWD", "the kernel's own names of devices and adapters"),
    (
        "agent/volume/src/fs_group.rs",
        "/proc/self/fd/",
        "the kernel's own link to an open descriptor",
    ),
    ("agent/volume/src/mount.rs", "/proc/self/fd/", "the kernel's own link to an open descriptor"),
    ("agent/volume/src/pod_volumes.rs", "self.pods.is_dir()", "the agent's own directory"),
    ("agent/csi/src/node/paths.rs", "path.is_dir()", "a driver's directory is the agent's own"),
    (
        "agent/csi/src/node/unstage.rs",
        "remove_dir(&stage)",
        "an empty mount point in a directory of the agent; a link is refused",
    ),
    ("agent/csi/src/record.rs", "File::", "the same as below"),
    ("agent/csi/src/record.rs", "fs", "records lie beside mounts, in directories of the agent"),
    (
        "agent/csi/src/node.rs",
        "fs::remove_",
        "mount points, whose parents are the agent's; empty ones only",
    ),
    ("agent/csi/src/node.rs", "fs::create_dir_all", "parents of mount points"),
    ("agent/csi/src/node/paths.rs", "fs::read_dir", "directories of records"),
    ("agent/csi/src/registration.rs", "fs::", "the directory of sockets"),
    ("agent/csi/src/registration.rs", "symlink_metadata", "the same; a link is not followed"),
    ("agent/csi/src/node.rs", "root.canonicalize()", "the agent's own directory"),
    (
        "agent/volume/src/pod_volumes.rs",
        "join(uid).symlink_metadata()",
        "the agent's own directory",
    ),
    (
        "agent/node-volumes/src/persistent_volumes/helpers.rs",
        "path.exists()",
        "a program of the node",
    ),
    ("agent/server/src/measure.rs", "/proc/stat", "the kernel's numbers"),
    ("agent/server/src/measure.rs", "pods.canonicalize()", "the agent's own directory"),
    ("agent/host/src/disk_usage.rs", "CWD", "tops that the agent names: of logs"),
];

#[test]
fn nothing_below_a_volume_is_opened_by_name() {
    let ways = [
        "fs::",
        "File::open",
        "File::create",
        "CWD",
        "/proc/self/",
        ".exists()",
        ".is_dir()",
        ".is_file()",
        ".metadata()",
        "metadata(",
        "statvfs(",
        "canonicalize",
        "read_link",
    ];
    let mut offenders = Vec::new();
    for (path, source) in sources() {
        // A simulation has no containers that could redirect paths.
        let simulated = path.ends_with("/simulated.rs");
        if simulated || is_test(&path) || !VOLUME_CODE.iter().any(|place| path.starts_with(place)) {
            continue;
        }
        for (number, line) in production(&source).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let by_name = code.replace("rustix::fs::", "").replace("tokio::fs::", "fs::");
            let imports = code.trim_start().starts_with("use ");
            let listed = NAMES_OPENED
                .iter()
                .any(|(file, snippet, _)| *file == path && code.contains(snippet));
            if !imports && !listed && ways.iter().any(|way| by_name.contains(way)) {
                offenders.push(format!("{path}:{}", number + 1));
            }
        }
    }
    check("only a descriptor leads below a volume's root", offenders);
}

#[test]
fn files_stay_short() {
    let too_long = |(path, source): &(String, String)| {
        let lines = production(source).lines().count();
        (lines > FILE_LINES_MAX && !is_test(path) && !is_generated(path))
            .then(|| format!("{path}: {lines}"))
    };
    check("a file has one subject", sources().iter().filter_map(too_long).collect());
}

#[test]
fn every_file_says_what_it_is() {
    let mute = |(path, source): &&(String, String)| {
        !is_generated(path)
            && !path.ends_with("/tests.rs")
            && !source.trim_start().starts_with("//!")
    };
    check(
        "a file opens with what it is",
        sources().iter().filter(mute).map(|s| s.0.clone()).collect(),
    );
}
