//! `create configmap`, `create secret generic`, `create secret tls`, `create secret docker-registry`.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::generate::configuration::{self, DataEntry, RegistryLogin};

use super::CommonFlags;
use crate::requests;

/// Longest file; objects that a server keeps are shorter.
const FILE_LEN_MAX: u64 = 4 << 20;

/// Where entries come from.
#[derive(clap::Args, Debug)]
pub struct SourceFlags {
    /// File or directory, or KEY=FILE; repeatable
    #[arg(long, value_name = "FILE")]
    from_file: Vec<String>,
    /// KEY=VALUE; repeatable
    #[arg(long, value_name = "PAIR")]
    from_literal: Vec<String>,
    /// File of lines KEY=VALUE, or KEY for a variable of the environment; repeatable
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from_file", "from_literal"])]
    from_env_file: Vec<PathBuf>,
}

impl SourceFlags {
    fn entries(&self, session: &Session) -> Result<Vec<DataEntry>, CommandError> {
        let mut entries = Vec::new();
        for text in &self.from_file {
            add_file(text, &mut entries)?;
        }
        for text in &self.from_literal {
            entries.push(configuration::parse_literal(text).map_err(requests::argument)?);
        }
        for path in &self.from_env_file {
            let name = path.display().to_string();
            let variable = |name: &str| session.variable(name);
            let found = configuration::parse_env_file(&name, &read(path)?, variable);
            entries.extend(found.map_err(requests::argument)?);
        }
        Ok(entries)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, CommandError> {
    let wrong = |error: std::io::Error| {
        CommandError::with_text(format!("error reading {}: {error}", path.display()))
    };
    let mut content = Vec::new();
    let file = std::fs::File::open(path).map_err(wrong)?;
    file.take(FILE_LEN_MAX.saturating_add(1)).read_to_end(&mut content).map_err(wrong)?;
    if content.len() as u64 > FILE_LEN_MAX {
        return Err(CommandError::with_text(format!(
            "{} has more than {FILE_LEN_MAX} bytes",
            path.display()
        )));
    }
    Ok(content)
}

/// Adds a file, or the files of a directory, whose names are the keys.
fn add_file(text: &str, entries: &mut Vec<DataEntry>) -> Result<(), CommandError> {
    let name_of = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let (key, path) = match text.split_once('=') {
        Some((key, path)) if !key.is_empty() && !path.is_empty() => (Some(key), Path::new(path)),
        None => (None, Path::new(text)),
        _ => return Err(CommandError::with_text(format!("{text:?} is neither FILE nor KEY=FILE"))),
    };
    if !path.is_dir() {
        let key = key.map(str::to_owned).or_else(|| name_of(path));
        entries.push((key.unwrap_or_default(), read(path)?));
        return Ok(());
    }
    if key.is_some() {
        return Err(CommandError::with_text("cannot give a key name for a directory path"));
    }
    let wrong =
        |error| CommandError::with_text(format!("error listing {}: {error}", path.display()));
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(path).map_err(wrong)? {
        paths.push(entry.map_err(wrong)?.path());
    }
    paths.sort();
    for path in paths.iter().filter(|path| path.is_file()) {
        entries.push((name_of(path).unwrap_or_default(), read(path)?));
    }
    Ok(())
}

/// Flags of `create configmap`.
#[derive(clap::Args, Debug)]
pub struct ConfigMapArgs {
    /// Its name
    name: String,
    #[command(flatten)]
    sources: SourceFlags,
    #[command(flatten)]
    common: CommonFlags,
}

pub(super) async fn run_config_map(
    session: &Session,
    args: ConfigMapArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let made = configuration::config_map(&args.name, &args.sources.entries(session)?, false);
    args.common.generate(session, made, "configmap", output).await
}

/// Types of secrets.
#[derive(Subcommand, Debug)]
pub enum SecretPart {
    /// Of files and values
    Generic(GenericArgs),
    /// A certificate with its key
    Tls(TlsArgs),
    /// A login at a registry of images
    DockerRegistry(RegistryArgs),
}

/// Flags of `create secret generic`.
#[derive(clap::Args, Debug)]
pub struct GenericArgs {
    /// Its name
    name: String,
    /// Its type
    #[arg(long = "type", value_name = "TYPE", default_value = "", hide_default_value = true)]
    kind: String,
    #[command(flatten)]
    sources: SourceFlags,
    #[command(flatten)]
    common: CommonFlags,
}

/// Flags of `create secret tls`.
#[derive(clap::Args, Debug)]
pub struct TlsArgs {
    /// Its name
    name: String,
    /// File with the certificate chain, PEM
    #[arg(long, value_name = "FILE")]
    cert: PathBuf,
    /// File with the private key, PEM
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    #[command(flatten)]
    common: CommonFlags,
}

/// Flags of `create secret docker-registry`.
#[derive(clap::Args, Debug)]
pub struct RegistryArgs {
    /// Its name
    name: String,
    /// URL of the registry
    #[arg(long, value_name = "URL", default_value = "https://index.docker.io/v1/")]
    docker_server: String,
    /// User
    #[arg(long, value_name = "NAME", required_unless_present = "from_file")]
    docker_username: Option<String>,
    /// Password
    #[arg(long, value_name = "PASSWORD", required_unless_present = "from_file")]
    docker_password: Option<String>,
    /// Address of the user
    #[arg(long, value_name = "ADDRESS", default_value = "", hide_default_value = true)]
    docker_email: String,
    /// File with logins, instead of the other flags
    #[arg(long, value_name = "FILE", conflicts_with_all = ["docker_username", "docker_password"])]
    from_file: Option<PathBuf>,
    #[command(flatten)]
    common: CommonFlags,
}

pub(super) async fn run_secret(
    session: &Session,
    part: SecretPart,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    match part {
        SecretPart::Generic(args) => {
            let made =
                configuration::secret(&args.name, &args.kind, &args.sources.entries(session)?);
            args.common.generate(session, made, "secret", output).await
        }
        SecretPart::Tls(args) => {
            let names = args.common.names(session).await?;
            let made =
                configuration::tls_secret(names, &args.name, read(&args.cert)?, read(&args.key)?);
            args.common.generate(session, made, "secret", output).await
        }
        SecretPart::DockerRegistry(args) => {
            let names = args.common.names(session).await?;
            let made = match &args.from_file {
                Some(path) => {
                    let entry = (".dockerconfigjson".to_owned(), read(path)?);
                    configuration::secret(&args.name, &names.label("dockerconfigjson"), &[entry])
                }
                None => {
                    let login = RegistryLogin {
                        server: &args.docker_server,
                        username: args.docker_username.as_deref().unwrap_or_default(),
                        password: args.docker_password.as_deref().unwrap_or_default(),
                        email: &args.docker_email,
                    };
                    configuration::registry_secret(names, &args.name, login)
                }
            };
            args.common.generate(session, made, "secret", output).await
        }
    }
}
