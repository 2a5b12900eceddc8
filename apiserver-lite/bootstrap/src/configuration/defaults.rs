//! Configurations with their defaults, as `config print` shows them: kubeadm's placeholders stand for what has none.

use proto_api::names::Names;
use serde_json::{Value, json};

use super::{
    ClusterConfiguration, Discovery, InitConfiguration, JoinConfiguration, TokenConfiguration,
    TokenDiscovery,
};

const TOKEN: &str = "abcdef.0123456789abcdef";

/// An `InitConfiguration` and a `ClusterConfiguration`.
pub fn init_defaults(names: &Names, runtime: &str) -> [Value; 2] {
    let init = InitConfiguration {
        bootstrap_tokens: vec![TokenConfiguration {
            token: TOKEN.to_owned(),
            ttl: "24h0m0s".to_owned(),
            ..TokenConfiguration::default()
        }],
        ..InitConfiguration::default()
    };
    let mut init = init.object(names);
    init["nodeRegistration"] = json!({"name": "node", "criSocket": runtime});
    init["localAPIEndpoint"]["advertiseAddress"] = "192.0.2.1".into();
    [init, ClusterConfiguration::default().object(names)]
}

/// A `JoinConfiguration`.
pub fn join_defaults(names: &Names, runtime: &str) -> Value {
    let join = JoinConfiguration {
        discovery: Discovery {
            bootstrap_token: Some(TokenDiscovery {
                token: TOKEN.to_owned(),
                api_server_endpoint: "192.0.2.1:6443".to_owned(),
                unsafe_skip_ca_verification: true,
                ..TokenDiscovery::default()
            }),
            timeout: "5m0s".to_owned(),
            ..Discovery::default()
        },
        ..JoinConfiguration::default()
    };
    let mut join = join.object(names);
    join["nodeRegistration"] = json!({"name": "node", "criSocket": runtime});
    join
}
