//! Flags that every program takes, spelled as Kubernetes spells them.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use proto_api::dns_names;
use proto_api::names::{DEFAULT_ORCH_DOMAIN, Names, Profile};

use crate::log::{LogFormat, LogSettings};

/// Flatten this into a program's flags: `#[command(flatten)] common: CommonFlags`.
#[derive(Args, Clone, Debug)]
pub struct CommonFlags {
    /// Names used in the API, on disk and in metrics.
    #[arg(long, value_enum, default_value_t = Naming::Orch)]
    pub naming: Naming,

    /// Domain of API groups and labels under the orch naming.
    #[arg(long, value_name = "DOMAIN", default_value = DEFAULT_ORCH_DOMAIN,
          value_parser = parse_domain)]
    pub api_domain: String,

    /// Configuration file (YAML or JSON, with apiVersion and kind); flags override it.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Form of log lines on standard error.
    #[arg(long, alias = "logging-format", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// Log level: 0 to 3 decisions, 4 and 5 details, 6 to 9 every request.
    #[arg(short = 'v', long = "v", value_name = "LEVEL", default_value_t = 0,
          value_parser = clap::value_parser!(u8).range(0..=9))]
    pub verbosity: u8,

    /// Address of the plain-HTTP health and metrics server, as IP or IP:port.
    #[arg(long, value_name = "ADDRESS")]
    pub healthz_bind_address: Option<BindAddress>,
}

/// Which naming profile a process uses (`--naming`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Naming {
    /// The project's own names.
    Orch,
    /// Kubernetes' names.
    Kubernetes,
}

impl CommonFlags {
    /// The names of the chosen profile; call once per process, the table is leaked.
    pub fn names(&self) -> &'static Names {
        Names::new(match self.naming {
            Naming::Orch => Profile::Orch { domain: self.api_domain.clone() },
            Naming::Kubernetes => Profile::Kubernetes,
        })
    }

    /// For programs that are configured by flags only.
    ///
    /// # Errors
    /// `--config` was given.
    pub fn refuse_config(&self) -> Result<(), NoConfigFile> {
        self.config.clone().map_or(Ok(()), |path| Err(NoConfigFile(path)))
    }

    /// What [`crate::log::init`] needs.
    pub fn log(&self) -> LogSettings {
        LogSettings { format: self.log_format, verbosity: self.verbosity }
    }
}

/// `--config` was given to a program without a configuration file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("--config {0}: this program reads no configuration file, it is configured by flags")]
pub struct NoConfigFile(PathBuf);

/// The warning that a given flag has no effect.
pub fn without_effect(flag: &str) -> String {
    format!("flag --{flag} is accepted for compatibility and has no effect")
}

/// Warns that a given flag has no effect. Call it once logging is set up.
pub fn warn_without_effect(flag: &str) {
    tracing::warn!("{}", without_effect(flag));
}

/// Why the value of a flag is refused; the text says what was expected. What parses the flags adds its name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FlagError(String);

impl FlagError {
    /// With this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// A domain that no cluster can have.
#[derive(Debug, thiserror::Error)]
#[error("must be a DNS name of at least two labels in lower case")]
struct DomainError;

/// Reads a DNS name of at least two labels.
fn parse_domain(text: &str) -> Result<String, DomainError> {
    let is_domain = text.contains('.') && dns_names::is_name(text);
    if is_domain { Ok(text.to_owned()) } else { Err(DomainError) }
}

/// An address to listen at; the program has a default for the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindAddress {
    /// The local address.
    pub ip: IpAddr,
    /// The port if the flag has one; 0 binds a free one.
    pub port: Option<u16>,
}

impl BindAddress {
    /// With `default_port` if the flag has no port.
    pub fn socket(self, default_port: u16) -> SocketAddr {
        SocketAddr::new(self.ip, self.port.unwrap_or(default_port))
    }
}

impl FromStr for BindAddress {
    type Err = FlagError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(ip) = text.parse() {
            return Ok(Self { ip, port: None });
        }
        text.parse::<SocketAddr>()
            .map(|at| Self { ip: at.ip(), port: Some(at.port()) })
            .map_err(|_| FlagError::new("must be an IP address, or IP:port"))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        common: CommonFlags,
    }

    fn parse(args: &[&str]) -> Result<CommonFlags, clap::Error> {
        Flags::try_parse_from([&["program"], args].concat()).map(|flags| flags.common)
    }

    #[test]
    fn verbosity_has_kubernetes_spellings_and_bounds() {
        for args in [&["-v4"][..], &["-v", "4"], &["--v=4"], &["-v=4"]] {
            assert_eq!(parse(args).expect("valid").verbosity, 4, "{args:?}");
        }
        assert!(parse(&["--v=10"]).is_err());
    }

    #[test]
    fn the_profile_follows_the_flags() {
        assert_eq!(parse(&[]).expect("valid").names().group("storage"), "storage.orch.io");
        let own = parse(&["--api-domain=example.org"]).expect("valid");
        assert_eq!(own.names().group("storage"), "storage.example.org");
        let foreign = parse(&["--naming", "kubernetes"]).expect("valid");
        assert_eq!(foreign.names().group("storage"), "storage.k8s.io");
        for bad in ["orch", "Orch.io", "-a.io", "a..io", ""] {
            assert!(parse(&["--api-domain", bad]).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_program_without_a_configuration_file_refuses_one() {
        assert_eq!(parse(&[]).expect("valid").refuse_config(), Ok(()));
        let given = parse(&["--config=/etc/x.yaml"]).expect("valid").refuse_config();
        assert!(given.expect_err("refused").to_string().contains("--config /etc/x.yaml"));
    }

    #[test]
    fn a_bind_address_may_leave_the_port_out() {
        let at = |text: &str| text.parse::<BindAddress>().map(|at| at.socket(10248).to_string());
        assert_eq!(at("127.0.0.1"), Ok("127.0.0.1:10248".to_owned()));
        assert_eq!(at("0.0.0.0:0"), Ok("0.0.0.0:0".to_owned()));
        assert_eq!(at("::1"), Ok("[::1]:10248".to_owned()));
        assert_eq!(at("[::]:9"), Ok("[::]:9".to_owned()));
        assert!(at("localhost").is_err());
    }
}
