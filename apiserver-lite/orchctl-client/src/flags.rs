//! The flags that every command has.

use std::path::PathBuf;

use clap::Args;

/// Flags of every command.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Flags of every command")]
pub struct GlobalFlags {
    /// File with the client configuration, instead of those of the environment
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the configuration to use
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// Namespace of the request
    #[arg(long, short, global = true, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Time for each request (1s, 2m, 3h); 0 for no limit
    #[arg(long, global = true, value_name = "TIME", default_value = "0")]
    pub request_timeout: String,
    /// Refuse a server of another version than this client
    #[arg(long, global = true)]
    pub match_server_version: bool,
    /// Treat warnings of the server as errors: exit with 1
    #[arg(long, global = true)]
    pub warnings_as_errors: bool,
    /// What to report of requests: 6 lines, 7 headers, 8 bodies, 9 whole bodies
    #[arg(long = "v", short = 'v', global = true, value_name = "LEVEL", default_value_t = 0)]
    pub verbosity: u8,
    /// For kubectl's scripts: no directory is used, what the server serves is read by each run
    #[arg(long, global = true, value_name = "DIRECTORY")]
    pub cache_dir: Option<PathBuf>,
    /// For kubectl's scripts: responses are never compressed, whatever this says
    #[arg(long, global = true)]
    pub disable_compression: bool,
    /// Where the server is
    #[command(flatten)]
    pub server: ServerFlags,
    /// Who asks
    #[command(flatten)]
    pub identity: UserFlags,
}

/// Where the server is and how it is recognised.
#[derive(Args, Clone, Debug, Default)]
pub struct ServerFlags {
    /// Cluster of the configuration to use
    #[arg(long, global = true, value_name = "NAME")]
    pub cluster: Option<String>,
    /// URL of the API server
    #[arg(long, short, global = true, value_name = "URL")]
    pub server: Option<String>,
    /// File with the authorities of the server's certificate
    #[arg(long, global = true, value_name = "FILE")]
    pub certificate_authority: Option<PathBuf>,
    /// Accept any certificate of the server: its connections are not secure
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub insecure_skip_tls_verify: Option<bool>,
    /// Name that the server's certificate must have, instead of the URL's
    #[arg(long, global = true, value_name = "NAME")]
    pub tls_server_name: Option<String>,
}

/// The user of the request.
#[derive(Args, Clone, Debug, Default)]
pub struct UserFlags {
    /// User of the configuration to use
    #[arg(long, global = true, value_name = "NAME")]
    pub user: Option<String>,
    /// Bearer token
    #[arg(long, global = true, value_name = "TOKEN")]
    pub token: Option<String>,
    /// User name for basic authentication
    #[arg(long, global = true, value_name = "NAME")]
    pub username: Option<String>,
    /// Password for basic authentication
    #[arg(long, global = true, value_name = "PASSWORD")]
    pub password: Option<String>,
    /// File with the client's certificate
    #[arg(long, global = true, value_name = "FILE")]
    pub client_certificate: Option<PathBuf>,
    /// File with the key of the client's certificate
    #[arg(long, global = true, value_name = "FILE")]
    pub client_key: Option<PathBuf>,
    /// User to act as
    #[arg(long = "as", global = true, value_name = "USER")]
    pub impersonate: Option<String>,
    /// Group to act as a member of; repeatable
    #[arg(long = "as-group", global = true, value_name = "GROUP")]
    pub impersonate_groups: Vec<String>,
    /// UID to act as
    #[arg(long = "as-uid", global = true, value_name = "UID")]
    pub impersonate_uid: Option<String>,
}
