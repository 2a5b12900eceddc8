//! `orchadm token`: bootstrap tokens, with which hosts join.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use apiserver_bootstrap::apply::create_one;
use apiserver_bootstrap::bootstrap_token::{
    BootstrapToken, ListedToken, join_command, secret_name, secret_type,
};
use apiserver_bootstrap::client_config;
use apiserver_bootstrap::cluster_info;
use apiserver_bootstrap::configuration::TokenConfiguration;
use apiserver_bootstrap::error::BootstrapError;
use clap::{Args, Subcommand};
use proto_api::core::v1::Secret;
use proto_client::{DeleteParams, ListParams};
use serde_json::json;
use time::OffsetDateTime;

use crate::cluster;
use crate::failure::not_valid;
use crate::host::Host;
use crate::output::{residual, table};

/// `token ...`
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token in the cluster.
    Create(CreateFlags),
    /// List the tokens of the cluster.
    List(ConfigFlag),
    /// Delete tokens, by the token or its id.
    Delete {
        /// Tokens, or their ids.
        #[arg(required = true)]
        tokens: Vec<String>,
        #[command(flatten)]
        config: ConfigFlag,
    },
    /// Print a random token; nothing is made.
    Generate,
}

/// The client configuration.
#[derive(Args, Clone, Debug)]
pub struct ConfigFlag {
    /// Client configuration of an administrator [default: admin.conf of this host]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

/// Flags of `token create`.
#[derive(Args, Clone, Debug)]
pub struct CreateFlags {
    /// The token [default: a new one]
    token: Option<String>,
    /// How long it lasts; 0 for ever [default: 24h]
    #[arg(long, value_name = "DURATION", default_value = "")]
    ttl: String,
    /// Groups of who joins with it [default: the one whose certificates are approved]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    groups: Vec<String>,
    /// What it may be used for: signing, authentication [default: both]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    usages: Vec<String>,
    /// A text for people.
    #[arg(long, value_name = "TEXT", default_value = "")]
    description: String,
    /// Print the command with which hosts join.
    #[arg(long)]
    print_join_command: bool,
    #[command(flatten)]
    config: ConfigFlag,
}

/// Runs a command.
///
/// # Errors
/// What is given is not valid, or the API server refuses.
pub async fn run(host: &Host, command: &TokenCommand) -> Result<()> {
    match command {
        TokenCommand::Create(flags) => create(host, flags).await,
        TokenCommand::List(config) => list(host, config).await,
        TokenCommand::Delete { tokens, config } => delete(host, tokens, config).await,
        TokenCommand::Generate => {
            let token = BootstrapToken::generate().text();
            host.output.result(&token, &json!({"token": token}));
            Ok(())
        }
    }
}

async fn create(host: &Host, flags: &CreateFlags) -> Result<()> {
    let given = TokenConfiguration {
        token: flags.token.clone().unwrap_or_default(),
        description: flags.description.clone(),
        ttl: flags.ttl.clone(),
        usages: flags.usages.clone(),
        groups: flags.groups.clone(),
    };
    let now = OffsetDateTime::now_utc().unix_timestamp();
    let spec = given.spec(host.names, now).map_err(not_valid)?;
    let path = flags.config.path(host);
    let client = cluster::client(&path, host.names)?;
    let created = create_one(&client, &spec.secret(host.names)).await;
    created.map_err(|error| not_created(error, &spec.token.id))?;
    let token = spec.token.text();
    let config = client_config::load(&path)?;
    let authority = config.tls.authority.as_ref().and_then(client_config::pem_text);
    let authority = authority.with_context(|| {
        format!("client configuration {} has no certificate-authority-data", path.display())
    })?;
    let pins = cluster_info::pins(&path, &authority)?;
    let join = join_command(&config.server.to_string(), &token, &pins);
    let text = if flags.print_join_command {
        join.replace("\\\n\t", "").trim().to_owned()
    } else {
        token.clone()
    };
    let value = json!({
        "token": token,
        "caCertHashes": pins,
        "joinCommand": join.replace("\\\n\t", "").trim(),
    });
    host.output.result(&text, &value);
    Ok(())
}

/// What to do about a token that was not created. One of its id stays as it is: merged with another it would have its secret, and the rights of both.
fn not_created(error: BootstrapError, id: &str) -> anyhow::Error {
    match &error {
        BootstrapError::Api { cause, .. } if cause.is_already_exists() => {
            let text = format!(
                "the token {id} exists: `orchadm token delete {id}` first, or give another"
            );
            anyhow::Error::from(error).context(text)
        }
        _ => error.into(),
    }
}

async fn list(host: &Host, config: &ConfigFlag) -> Result<()> {
    let client = cluster::client(&config.path(host), host.names)?;
    let field_selector = format!("type={}", secret_type(host.names));
    let params = ListParams { field_selector, ..ListParams::default() };
    let secrets = client.within::<Secret>(host.names.system_namespace()).list(&params).await?;
    let tokens: Vec<ListedToken> =
        secrets.items.iter().filter_map(ListedToken::from_secret).collect();
    let heading = ["TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA GROUPS"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    let now = OffsetDateTime::now_utc().unix_timestamp();
    rows.extend(tokens.iter().map(|token| row(token, now)));
    host.output.result(&table(&rows), &json!(tokens));
    Ok(())
}

fn row(token: &ListedToken, now: i64) -> Vec<String> {
    let or_none = |text: &str| if text.is_empty() { "<none>" } else { text }.to_owned();
    let left = token.expires.as_ref().map(|text| match text.parse::<proto_api::Time>() {
        Ok(end) => residual(end.unix().unwrap_or_default().saturating_sub(now)),
        Err(_) => "<invalid>".to_owned(),
    });
    vec![
        token.token.clone(),
        left.unwrap_or_else(|| "<forever>".to_owned()),
        token.expires.clone().unwrap_or_else(|| "<never>".to_owned()),
        token.usages.join(","),
        or_none(&token.description),
        or_none(&token.groups.join(",")),
    ]
}

async fn delete(host: &Host, tokens: &[String], config: &ConfigFlag) -> Result<()> {
    let ids = tokens.iter().map(|token| BootstrapToken::parse_id(token).map_err(not_valid));
    let ids: Vec<&str> = ids.collect::<Result<_>>()?;
    let client = cluster::client(&config.path(host), host.names)?;
    let api = client.within::<Secret>(host.names.system_namespace());
    for id in ids {
        let deleted = api.delete(&secret_name(id), &DeleteParams::default()).await;
        deleted.with_context(|| format!("cannot delete the bootstrap token {id}"))?;
        host.output.result(&format!("bootstrap token {id:?} deleted"), &json!({"deleted": id}));
    }
    Ok(())
}

impl ConfigFlag {
    fn path(&self, host: &Host) -> PathBuf {
        self.kubeconfig.clone().unwrap_or_else(|| host.layout.admin.clone())
    }
}
