//! Tests of the server through its API: built as `main` builds it, on a free port, over TLS.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod admission;
mod aggregation;
mod apply;
mod audit;
mod authorizers;
mod backup;
mod certificate_rotation;
mod component_statuses;
mod custom_resources;
mod definition_memory;
mod deletion;
mod deprecation;
mod discovery;
mod encryption;
mod ephemeral;
mod etcd;
mod field_gates;
mod flow_control;
mod identity;
mod key_rotation;
mod limits;
mod nodes;
mod numbers;
mod old_versions;
mod pod_security;
mod process;
mod proxy;
mod quotas;
mod rbac;
mod removed_nodes;
mod requests;
mod resource_metrics;
mod resource_versions;
mod rules;
mod saved_states;
mod semantics;
mod service_accounts;
mod signers;
mod silent_connections;
mod storage;
mod stored_only_kinds;
mod support;
mod test_harness;
mod tls;
mod tls_versions;
mod token_webhook;
mod tokens;
mod unread_responses;
mod web_page;
mod webhooks;
mod workloads;
