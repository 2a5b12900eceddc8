//! `orchadm certs`: when certificates end, their renewal, and the rotation of the key of service accounts.

use anyhow::{Context as _, Result};
use apiserver_bootstrap::renewal::{Expiry, expiries, renewable};
use apiserver_bootstrap::service_account_keys::{self, KeyRotation};
use apiserver_bootstrap::services;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::failure::not_valid;
use crate::host::Host;
use crate::output::{residual, table};

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
    /// Only make the next key and let it verify: before it signs, copy sa.pub to the other control plane nodes.
    #[arg(long, conflicts_with = "forget_old")]
    prepare: bool,
    /// Make no new key: leave only the current one, so that tokens of older ones are refused.
    #[arg(long)]
    forget_old: bool,
    /// Restart the programs that use it.
    #[arg(long)]
    restart: bool,
}

/// Programs whose client configuration has a certificate in it, which they read at their start. The API server reads files again that have changed.
const CERTIFICATE_READERS: [&str; 2] = ["orch-controller-manager", "orch-scheduler"];
/// The program that reads the key of service accounts at its start.
const KEY_READERS: [&str; 1] = ["orch-controller-manager"];

/// Runs a command.
///
/// # Errors
/// A certificate is missing or cannot be renewed.
pub async fn run(host: &Host, command: &CertsCommand) -> Result<()> {
    match command {
        CertsCommand::CheckExpiration => check(host),
        CertsCommand::Renew(flags) => {
            let _lock = host.lock().await?;
            renew(host, &flags.name)?;
            restart(host, &CERTIFICATE_READERS, flags.restart).await
        }
        CertsCommand::RotateSa(flags) => {
            let _lock = host.lock().await?;
            rotate(host, flags)?;
            // A key that does not sign yet is read by the API server only.
            if flags.prepare { Ok(()) } else { restart(host, &KEY_READERS, flags.restart).await }
        }
    }
}

/// Renews a certificate, or all.
///
/// # Errors
/// There is none of that name, or it cannot be renewed.
pub fn renew(host: &Host, name: &str) -> Result<()> {
    let mut chosen = renewable(host.names, &host.layout);
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
    let (pki, now) = (host.pki(), OffsetDateTime::now_utc());
    for one in &chosen {
        // As kubeadm: what can be renewed is.
        if let Some(why) = one.kept_by_another(&pki).filter(|_| name == "all") {
            host.output.warn("certs", "ExternalAuthority", &why);
            continue;
        }
        let renewed = one.renew(host.names, &pki, now);
        renewed.with_context(|| format!("cannot renew {}", one.name))?;
        host.output.log("certs", &format!("renewed {}", one.name));
    }
    Ok(())
}

fn rotate(host: &Host, flags: &RotateFlags) -> Result<()> {
    let pki = host.pki();
    if flags.forget_old {
        let count = service_account_keys::forget_old(&pki)?;
        host.output.log("certs", &format!("forgot {count} older keys of service accounts"));
    } else if flags.prepare {
        service_account_keys::prepare(&pki)?;
        host.output.log("certs", "made the next key of service accounts, which verifies and does not sign yet; copy sa.pub to the other control plane nodes, run `certs rotate-sa`, then copy sa.key and sa.pub");
    } else {
        let done = match service_account_keys::rotate(&pki)? {
            KeyRotation::Done => "made a new key of service accounts",
            KeyRotation::Finished => {
                "finished a rotation of the key of service accounts that was interrupted, and made no other key"
            }
        };
        let next = "`certs rotate-sa --forget-old` once no token of the old one is used any more";
        host.output.log("certs", &format!("{done}; {next}"));
    }
    Ok(())
}

async fn restart(host: &Host, readers: &[&str], asked: bool) -> Result<()> {
    if !asked {
        let text = format!(
            "orch-apiserver reads them again by itself; restart {}, or give --restart",
            readers.join(" and ")
        );
        host.output.log("certs", &text);
        return Ok(());
    }
    let known = host.read_record()?;
    for program in readers.iter().filter_map(|name| known.program(name)) {
        if services::restart(&host.layout, program).await? {
            host.output.log("certs", &format!("restarted {}", program.name));
        }
    }
    Ok(())
}

fn row(of: &Expiry, now: OffsetDateTime, with_authority: bool) -> Vec<String> {
    let ends = proto_api::Time::from_unix(of.ends.unix_timestamp()).to_string();
    let left = residual((of.ends - now).whole_seconds());
    let mut row = vec![of.name.clone(), ends, left];
    if with_authority {
        row.push(of.authority.clone());
    }
    row.push(if of.is_external { "yes" } else { "no" }.to_owned());
    row
}

fn value(of: &Expiry, now: OffsetDateTime) -> Value {
    json!({
        "name": of.name,
        "expirationDate": proto_api::Time::from_unix(of.ends.unix_timestamp()).to_string(),
        "residualTime": (of.ends - now).whole_seconds(),
        "externallyManaged": of.is_external,
        "caName": of.authority,
    })
}

fn check(host: &Host) -> Result<()> {
    let now = OffsetDateTime::now_utc();
    let (leaves, authorities) = expiries(host.names, &host.layout, &host.pki())?;
    let heading = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let (external, time) = ("EXTERNALLY MANAGED", "RESIDUAL TIME");
    let mut first =
        vec![heading(&["CERTIFICATE", "EXPIRES", time, "CERTIFICATE AUTHORITY", external])];
    first.extend(leaves.iter().map(|one| row(one, now, true)));
    let mut second = vec![heading(&["CERTIFICATE AUTHORITY", "EXPIRES", time, external])];
    second.extend(authorities.iter().map(|one| row(one, now, false)));
    let values = |all: &[Expiry]| all.iter().map(|one| value(one, now)).collect::<Vec<_>>();
    let all = json!({
        "certificates": values(&leaves), "certificateAuthorities": values(&authorities),
    });
    host.output.result(&format!("{}\n\n{}", table(&first), table(&second)), &all);
    Ok(())
}
