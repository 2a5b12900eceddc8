//! `orchadm config`: configuration files are printed with their defaults, checked, and written in the current version.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use apiserver_bootstrap::configuration::{init_defaults, join_defaults, migrate, parse};
use clap::{Args, Subcommand};
use proto_api::yaml;
use proto_daemon::private_files;
use serde_json::json;

use crate::failure::not_valid;
use crate::host::Host;
use crate::runtime::DEFAULT_SOCKET;

/// `config ...`
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print a configuration with its defaults.
    #[command(subcommand)]
    Print(PrintCommand),
    /// Check a configuration file.
    Validate {
        /// The file.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Write a configuration file of an older version in the current one.
    Migrate(MigrateFlags),
}

/// `config print ...`
#[derive(Debug, Subcommand)]
pub enum PrintCommand {
    /// For `init --config`.
    InitDefaults,
    /// For `join --config`.
    JoinDefaults,
}

/// Flags of `config migrate`.
#[derive(Args, Clone, Debug)]
pub struct MigrateFlags {
    /// The file that is read.
    #[arg(long, value_name = "FILE")]
    old_config: PathBuf,
    /// The file that is written [default: standard output]
    #[arg(long, value_name = "FILE")]
    new_config: Option<PathBuf>,
}

/// Runs a command.
///
/// # Errors
/// A file cannot be read, or is not valid.
pub fn run(host: &Host, command: &ConfigCommand) -> Result<()> {
    match command {
        ConfigCommand::Print(PrintCommand::InitDefaults) => {
            let [init, cluster] = init_defaults(host.names, DEFAULT_SOCKET);
            let text = format!("{}---\n{}", yaml::to_string(&init), yaml::to_string(&cluster));
            host.output.result(&text, &json!([init, cluster]));
        }
        ConfigCommand::Print(PrintCommand::JoinDefaults) => {
            let join = join_defaults(host.names, DEFAULT_SOCKET);
            host.output.result(&yaml::to_string(&join), &join);
        }
        ConfigCommand::Validate { config } => {
            let text = read(config)?;
            let read = parse(&text, host.names).map_err(not_valid);
            let read = read.with_context(|| config.display().to_string())?;
            host.output.warn_all("config", "Ignored", &read.warnings);
            host.output.result("ok", &json!({"valid": true}));
        }
        ConfigCommand::Migrate(flags) => {
            let path = &flags.old_config;
            let text = migrate(&read(path)?, host.names).map_err(not_valid);
            let (text, ignored) = text.with_context(|| path.display().to_string())?;
            host.output.warn_all("config", "Ignored", &ignored);
            match &flags.new_config {
                // It may have a token.
                Some(new) => private_files::write_private_atomically(new, text.as_bytes())
                    .with_context(|| new.display().to_string())?,
                None => host.output.result(&text, &json!({"configuration": text})),
            }
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path).map_err(not_valid);
    text.with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use apiserver_bootstrap::configuration::ClusterConfiguration;
    use proto_api::names::{Names, Profile};

    use super::*;

    #[test]
    fn configuration_errors_name_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let names = Names::new(Profile::Kubernetes);
        let host = Host {
            names,
            layout: apiserver_bootstrap::layout::Layout::new(names, dir.path()),
            record: None,
            output: crate::output::LineOutput { format: crate::output::OutputFormat::Text },
        };
        let path = dir.path().join("c.yaml");
        let validate = || run(&host, &ConfigCommand::Validate { config: path.clone() });
        let error = validate().unwrap_err();
        assert!(format!("{error:#}").contains("c.yaml"));
        let cluster = ClusterConfiguration::default().object(names);
        std::fs::write(&path, yaml::to_string(&cluster)).unwrap();
        validate().unwrap();
        std::fs::write(
            &path,
            format!("{}etcd: {{external: {{caFile: f}}}}\n", yaml::to_string(&cluster)),
        )
        .unwrap();
        let error = validate().unwrap_err();
        assert!(error.downcast_ref::<crate::failure::NotValid>().is_some());
        assert!(format!("{error:#}").contains("etcd.external.endpoints: must have"), "{error:#}");
    }
}
