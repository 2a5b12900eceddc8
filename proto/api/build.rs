//! Generates Rust from `schema/*.tsv`: typed messages for the groups that the programs handle in code, and descriptor tables for every group. Uses the
//! standard library only.
//!
//! No generated code is checked in, so it cannot differ from the tables in `schema/`.

#![allow(
    clippy::panic,
    clippy::expect_used,
    reason = "an invalid table stops the build, with the row in the message"
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
/// The others have descriptors only.
const TYPED: &[&str] = &[
    "meta_v1",
    "core_v1",
    "apps_v1",
    "authentication_v1",
    "authorization_v1",
    "autoscaling_v1",
    "autoscaling_v2",
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
