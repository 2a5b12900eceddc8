//! `orchadm certs`: when certificates end, their renewal, and the rotation of the key of service accounts.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use apiserver_bootstrap::authority::{Authority, LEAF_DAYS, Usage, facts};
use apiserver_bootstrap::certificates::{self, AUTHORITY, PROXY_AUTHORITY, node_client_stem};
use apiserver_bootstrap::client_config::{self, AuthorityAt, Cluster};
use apiserver_bootstrap::service_account_keys;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::failure::not_valid;
use crate::host::Host;
use crate::output::{residual, table};
use crate::services;

/// `certs ...`
#[derive(Debug, Subcommand)]
pub enum CertsCommand {
    /// Show when the certificates of this host end.
    CheckExpiration,
    /// Renew certificates with their own authority and the same content.
    Renew(RenewFlags),
    /// Make a new key that signs service account tokens; tokens of the old one stay valid until it is forgotten.
    RotateSa(RotateFlags),
}

/// Flags of `certs renew`.
#[derive(Args, Clone, Debug)]
pub struct RenewFlags {
    /// all, or the name of a certificate as check-expiration shows it.
    name: String,
    /// Restart the programs that use them.
    #[arg(long)]
    restart: bool,
}

/// Flags of `certs rotate-sa`.
#[derive(Args, Clone, Debug)]
pub struct RotateFlags {
    /// Make no new key: leave only the current one, so that tokens of older ones are refused.
    #[arg(long)]
    forget_old: bool,
    /// Restart the programs that use it.
    #[arg(long)]
    restart: bool,
}

/// Programs that read certificates and keys at their start, in the order of a restart.
const READERS: [&str; 3] = ["orch-apiserver", "orch-controller-manager", "orch-scheduler"];

/// Where a certificate is.
enum Place {
    /// Files of its own, with their stem and authority.
    Files(Usage, &'static str),
    /// Inside a client configuration.
    Config(PathBuf),
}

/// A certificate that can be renewed.
struct Renewable {
    name: String,
    place: Place,
}

/// Runs a command.
///
/// # Errors
/// A certificate is missing or cannot be renewed.
pub async fn run(host: &Host, command: &CertsCommand) -> Result<()> {
    match command {
        CertsCommand::CheckExpiration => check(host),
        CertsCommand::Renew(flags) => {
            renew(host, &flags.name)?;
            restart(host, flags.restart).await
        }
        CertsCommand::RotateSa(flags) => {
            rotate(host, flags.forget_old)?;
            restart(host, flags.restart).await
        }
    }
}

fn renewable(host: &Host) -> Vec<Renewable> {
    let layout = &host.layout;
    let config = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        Renewable { name: name.unwrap_or_default(), place: Place::Config(path.clone()) }
    };
    let files = |name: &str, usage, authority| Renewable {
        name: name.to_owned(),
        place: Place::Files(usage, authority),
    };
    vec![
        config(&layout.admin),
        files("apiserver", Usage::Server, AUTHORITY),
        files(&node_client_stem(host.names), Usage::Client, AUTHORITY),
        config(&layout.controller_manager),
        files("front-proxy-client", Usage::Client, PROXY_AUTHORITY),
        config(&layout.scheduler),
    ]
}

impl Renewable {
    /// Its authority's file name without ending.
    fn authority(&self) -> &'static str {
        match self.place {
            Place::Files(_, authority) => authority,
            Place::Config(_) => AUTHORITY,
        }
    }

    /// The file, and the certificate in it.
    fn read(&self, host: &Host) -> Result<(PathBuf, String)> {
        match &self.place {
            Place::Files(..) => {
                let path = host.pki().join(format!("{}.crt", self.name));
                let text = std::fs::read_to_string(&path);
                let text = text.with_context(|| path.display().to_string())?;
                Ok((path, text))
            }
            Place::Config(path) => {
                let config = client_config::load(path)?;
                Ok((path.clone(), client_config::certificate(path, &config)?))
            }
        }
    }

    fn renew(&self, host: &Host, now: OffsetDateTime) -> Result<()> {
        let pki = host.pki();
        let authority = Authority::load(&pki, self.authority(), now)?;
        match &self.place {
            Place::Files(usage, _) => {
                let path = pki.join(format!("{}.crt", self.name));
                let leaf = certificates::leaf_of(&path, *usage)?;
                certificates::renew(&pki, &self.name, &leaf, &authority, LEAF_DAYS, now)?;
            }
            Place::Config(path) => {
                let config = client_config::load(path)?;
                let pem = client_config::certificate(path, &config)?;
                let known = facts(path, &pem)?;
                let groups: Vec<&str> = known.organizations.iter().map(String::as_str).collect();
                let leaf =
                    apiserver_bootstrap::authority::Leaf::client(&known.common_name, &groups);
                let server = config.server.to_string();
                let cluster = Cluster {
                    name: host.names.api_service_name(),
                    server: server.trim_end_matches('/'),
                    authority: AuthorityAt::Embedded(authority.certificate()),
                };
                client_config::renew(path, &cluster, &leaf, &authority, LEAF_DAYS, now)?;
            }
        }
        Ok(())
    }
}

/// Renews a certificate, or all.
///
/// # Errors
/// There is none of that name, or it cannot be renewed.
pub fn renew(host: &Host, name: &str) -> Result<()> {
    let mut chosen = renewable(host);
    if name != "all" {
        let names: Vec<String> = chosen.iter().map(|one| one.name.clone()).collect();
        chosen.retain(|one| one.name == name);
        if chosen.is_empty() {
            return Err(not_valid(format!(
                "there is no certificate {name:?}: must be all, {}",
                names.join(", ")
            )));
        }
    }
    let now = OffsetDateTime::now_utc();
    for one in &chosen {
        one.renew(host, now).with_context(|| format!("renewing {}", one.name))?;
        host.output.say("certs", &format!("renewed {}", one.name));
    }
    Ok(())
}

fn rotate(host: &Host, forget_old: bool) -> Result<()> {
    let pki = host.pki();
    if forget_old {
        let count = service_account_keys::forget_old(&pki)?;
        host.output.say("certs", &format!("forgot {count} older keys of service accounts"));
    } else {
        service_account_keys::rotate(&pki)?;
        host.output.say("certs", "made a new key of service accounts; `certs rotate-sa --forget-old` once no token of the old one is used any more");
    }
    Ok(())
}

async fn restart(host: &Host, asked: bool) -> Result<()> {
    if !asked {
        let text = format!(
            "{} read them at their start: restart them, or give --restart",
            READERS.join(", ")
        );
        host.output.say("certs", &text);
        return Ok(());
    }
    let known = host.known()?;
    for program in READERS.iter().filter_map(|name| known.program(name)) {
        if services::restart(&host.layout, program).await? {
            host.output.say("certs", &format!("restarted {}", program.name));
        }
    }
    Ok(())
}

/// A line about a certificate.
struct Line {
    name: String,
    ends: OffsetDateTime,
    authority: String,
    is_external: bool,
}

impl Line {
    fn row(&self, now: OffsetDateTime, with_authority: bool) -> Vec<String> {
        let ends = proto_api::Time::from_unix(self.ends.unix_timestamp()).to_string();
        let left = residual((self.ends - now).whole_seconds());
        let external = if self.is_external { "yes" } else { "no" };
        let mut row = vec![self.name.clone(), ends, left];
        if with_authority {
            row.push(self.authority.clone());
        }
        row.push(external.to_owned());
        row
    }

    fn value(&self, now: OffsetDateTime) -> Value {
        json!({
            "name": self.name,
            "expirationDate": proto_api::Time::from_unix(self.ends.unix_timestamp()).to_string(),
            "residualTime": (self.ends - now).whole_seconds(),
            "externallyManaged": self.is_external,
            "caName": self.authority,
        })
    }
}

fn check(host: &Host) -> Result<()> {
    let (pki, now) = (host.pki(), OffsetDateTime::now_utc());
    let is_external = |authority: &str| !pki.join(format!("{authority}.key")).exists();
    let mut leaves = Vec::new();
    for one in renewable(host) {
        let (path, pem) = one.read(host)?;
        let authority = one.authority();
        leaves.push(Line {
            ends: facts(&path, &pem)?.ends,
            is_external: is_external(authority),
            authority: authority.to_owned(),
            name: one.name,
        });
    }
    let mut authorities = Vec::new();
    for name in [AUTHORITY, PROXY_AUTHORITY] {
        let path = pki.join(format!("{name}.crt"));
        let pem = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        authorities.push(Line {
            name: name.to_owned(),
            ends: facts(&path, &pem)?.ends,
            authority: String::new(),
            is_external: is_external(name),
        });
    }
    let heading = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let (external, time) = ("EXTERNALLY MANAGED", "RESIDUAL TIME");
    let mut first =
        vec![heading(&["CERTIFICATE", "EXPIRES", time, "CERTIFICATE AUTHORITY", external])];
    first.extend(leaves.iter().map(|line| line.row(now, true)));
    let mut second = vec![heading(&["CERTIFICATE AUTHORITY", "EXPIRES", time, external])];
    second.extend(authorities.iter().map(|line| line.row(now, false)));
    let values = |lines: &[Line]| lines.iter().map(|line| line.value(now)).collect::<Vec<_>>();
    let value = json!({
        "certificates": values(&leaves), "certificateAuthorities": values(&authorities),
    });
    host.output.result(&format!("{}\n\n{}", table(&first), table(&second)), &value);
    Ok(())
}
