//! Turns `schema/*.tsv` into Rust: typed messages for the groups that our programs handle in code,
//! and descriptor tables for every group. Standard library only, so that nothing is built for it.
//!
//! Nothing generated is checked in: the tables under `schema/` are the one source, and what is made
//! from them cannot be stale.

#![allow(
    clippy::panic,
    clippy::expect_used,
    reason = "a table that makes no sense stops the build, with the row in the message"
)]

#[path = "build/schema.rs"]
mod schema;
#[path = "build/tables.rs"]
mod tables;
#[path = "build/typed.rs"]
mod typed;

use std::path::Path;
use std::{env, fs};

/// The group versions whose messages become Rust structs, in the order of `src/lib.rs`.
/// The others are known by descriptors only.
const TYPED: &[&str] = &[
    "meta_v1",
    "core_v1",
    "apps_v1",
    "authentication_v1",
    "authorization_v1",
    "autoscaling_v1",
    "batch_v1",
    "certificates_v1",
    "coordination_v1",
    "discovery_v1",
    "events_v1",
    "networking_v1",
    "node_v1",
    "policy_v1",
    "rbac_v1",
    "scheduling_v1",
    "storage_v1",
];

fn main() {
    println!("cargo:rerun-if-changed=schema");
    println!("cargo:rerun-if-changed=build");
    println!("cargo:rerun-if-changed=build.rs");
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let schema = schema::Schema::read(&Path::new(&root).join("schema"));
    for stem in TYPED {
        let code = typed::generate(&schema, stem);
        write(&Path::new(&out).join(format!("{stem}.rs")), &code);
    }
    let index = typed::generate_index(&schema, TYPED);
    write(&Path::new(&out).join("typed_kinds.rs"), &index);
    write(&Path::new(&out).join("tables.rs"), &tables::generate(&schema));
}

fn write(path: &Path, code: &str) {
    fs::write(path, code).unwrap_or_else(|e| panic!("cannot write {}: {e}", path.display()));
}
