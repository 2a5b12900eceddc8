//! Every decoder on hostile bytes, led by coverage (`hack/fuzz`).
//!
//! A target is a function of bytes. It runs a decoder and checks more than the absence of panics: a decoded value is encoded and decoded to the same value,
//! and it is not larger than the bytes allow. [`TARGETS`] has all of them, each with the seeds of its search, which the encoders make; `cargo test` runs every
//! target on its own seeds.

pub mod agent;
pub mod api;
pub mod archives;
pub mod custom_resources;
pub mod dns;
pub mod identity;
pub mod joining;
pub mod managed;
pub mod netfilter;
pub mod operators;
pub mod paths;
pub mod programs;
pub mod schema;
pub mod streams;
pub mod webhooks;

/// One decoder or a few that read the same bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: that of the program in `fuzz_targets`, too.
    pub name: &'static str,
    /// Lets the decoder read; panics where something is wrong with the decoder.
    pub check: fn(&[u8]),
    /// Whole inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

macro_rules! targets {
    ($($module:ident: $($name:ident),+;)+) => {
        /// All targets.
        pub const TARGETS: &[Target] = &[$($(Target {
            name: stringify!($name),
            check: $module::$name::check,
            seeds: $module::$name::seeds,
        },)+)+];
    };
}

targets! {
    netfilter: netlink, nft, conntrack, nflog;
    dns: dns_request, dns_answer, resolv_conf;
    api: api_scalars, selectors, api_json, api_protobuf, yaml;
    schema: schema_document, schema_protobuf, schema_patch;
    custom_resources: custom_schema, custom_rule;
    agent: cri_log, journal, node_texts, dbus;
    programs: proxy_config, store_log;
    identity: bearer, id_token, client_certificate, identity_files, webhook_answer;
    managed: field_set, managed_fields, server_side_apply;
    webhooks: admission_answer, conversion_answer, match_condition;
    operators: operator_files;
    joining: certificate_request, cluster_info;
    streams: client_frames, session_frames;
    archives: copied_archive, image_archive;
    paths: path_expressions;
}

/// Texts as inputs.
fn texts(all: &[&str]) -> Vec<Vec<u8>> {
    all.iter().map(|text| text.as_bytes().to_vec()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_a_program_and_reads_its_seeds() {
        for Target { name, check, seeds } in TARGETS {
            let program = format!("{}/fuzz_targets/{name}.rs", env!("CARGO_MANIFEST_DIR"));
            assert!(std::fs::exists(&program).unwrap(), "{program}");
            let seeds = seeds();
            assert!(!seeds.is_empty(), "{name}");
            let len: usize = seeds.iter().map(Vec::len).sum();
            assert!(len < 64 << 10, "{name}: {len} bytes of seeds");
            seeds.iter().for_each(|seed| check(seed));
            check(b"");
        }
    }
}
