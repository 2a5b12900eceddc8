//! Flags of service account tokens: keys, issuers, audiences, lifetimes.

use std::path::PathBuf;
use std::time::Duration;

use apiserver_core::config::{ServiceAccounts, TokenExtension, TokenLookup};
use clap::ArgAction;
use http::Uri;
use proto_daemon::flags::FlagError;
use proto_daemon::go_duration;

/// Range of `--service-account-max-token-expiration`, in seconds.
const EXPIRATION_MAX_SECS: std::ops::RangeInclusive<u64> = 60 * 60..=1 << 32;

/// The flags.
#[derive(clap::Args, Clone, Debug)]
pub struct ServiceAccountFlags {
    /// PEM file with public or private RSA or ECDSA keys that verify service account tokens, besides the signing key; repeatable. Read again when it changes.
    /// [default: the file of --tls-private-key-file, unless --service-account-signing-key-file is given]
    #[arg(long, value_name = "FILE")]
    service_account_key_file: Vec<PathBuf>,
    /// PEM file of the key that signs service account tokens. Read again when it changes. [default: a generated key]
    #[arg(long, value_name = "FILE")]
    service_account_signing_key_file: Option<PathBuf>,
    /// Issuer of service account tokens; repeatable: the first one is written into new tokens, all are accepted.
    #[arg(long, value_name = "URL", value_parser = parse_issuer)]
    service_account_issuer: Vec<String>,
    /// Where others find the public keys, https, if not at this server's own address; for the discovery document.
    #[arg(long, value_name = "URL", value_parser = parse_jwks_uri)]
    service_account_jwks_uri: Option<String>,
    /// Whether tokens of deleted service accounts, pods and Secrets are refused.
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    service_account_lookup: bool,
    /// Longest lifetime of a requested token, from 1h to 2^32 seconds; 0 for none.
    #[arg(long, value_name = "DURATION", value_parser = parse_expiration_max)]
    service_account_max_token_expiration: Option<Duration>,
    /// Whether tokens of pods' token volumes are valid for a year instead of an hour, for programs that read them once. They end with their pod.
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    service_account_extend_token_expiration: bool,
    /// Audiences of tokens for this server [default: the issuers]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    api_audiences: Vec<String>,
}

impl ServiceAccountFlags {
    /// What the flags say; `issuer` where they name none.
    pub fn settings(self, issuer: String) -> ServiceAccounts {
        let issuers = self.service_account_issuer;
        ServiceAccounts {
            key_files: self.service_account_key_file,
            signing_key_file: self.service_account_signing_key_file,
            issuers: if issuers.is_empty() { vec![issuer] } else { issuers },
            audiences: self.api_audiences,
            lookup: match self.service_account_lookup {
                true => TokenLookup::Checked,
                false => TokenLookup::Skipped,
            },
            expiration_max: self.service_account_max_token_expiration,
            extension: match self.service_account_extend_token_expiration {
                true => TokenExtension::Extended,
                false => TokenExtension::AsAsked,
            },
            jwks_uri: self.service_account_jwks_uri,
        }
    }
}

fn parse_issuer(text: &str) -> Result<String, FlagError> {
    match text {
        "" => Err(FlagError::new("the issuer should not be an empty string")),
        url if url.contains(':') && url.parse::<Uri>().is_err() => {
            Err(FlagError::new(format!("{url:?} contains a ':' but is not a valid URL")))
        }
        _ => Ok(text.to_owned()),
    }
}

fn parse_jwks_uri(text: &str) -> Result<String, FlagError> {
    let malformed = |error| FlagError::new(format!("{text:?} is not a valid URL: {error}"));
    let uri: Uri = text.parse().map_err(malformed)?;
    match uri.scheme_str() {
        Some("https") => Ok(text.to_owned()),
        _ => Err(FlagError::new(format!("{text:?} does not begin with https"))),
    }
}

fn parse_expiration_max(text: &str) -> Result<Duration, FlagError> {
    let max = go_duration::parse(text).map_err(|error| FlagError::new(error.to_string()))?;
    match max.is_zero() || EXPIRATION_MAX_SECS.contains(&max.as_secs()) {
        true => Ok(max),
        false => Err(FlagError::new(format!("{text} is not between 1 hour and 2^32 seconds"))),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        flags: ServiceAccountFlags,
    }

    fn parse(args: &[&str]) -> Result<ServiceAccounts, clap::Error> {
        let alone = Alone::try_parse_from([&["program"], args].concat())?;
        Ok(alone.flags.settings("https://own".to_owned()))
    }

    #[test]
    fn defaults_are_those_of_kubernetes() {
        let settings = parse(&[]).unwrap();
        assert_eq!(settings.issuers, ["https://own"]);
        assert_eq!(settings.lookup, TokenLookup::Checked);
        assert_eq!(settings.extension, TokenExtension::Extended);
        assert_eq!((settings.expiration_max, settings.jwks_uri), (None, None));
    }

    #[test]
    fn flags_are_those_of_kubernetes() {
        let settings = parse(&[
            "--service-account-key-file=/a",
            "--service-account-key-file=/b",
            "--service-account-signing-key-file=/c",
            "--service-account-issuer=https://new",
            "--service-account-issuer=old",
            "--service-account-jwks-uri=https://keys/all",
            "--service-account-lookup=false",
            "--service-account-max-token-expiration=2h",
            "--service-account-extend-token-expiration=false",
            "--api-audiences=api,vault",
        ])
        .unwrap();
        assert_eq!(settings.key_files, [PathBuf::from("/a"), PathBuf::from("/b")]);
        assert_eq!(settings.signing_key_file, Some(PathBuf::from("/c")));
        assert_eq!(settings.issuers, ["https://new", "old"]);
        assert_eq!(settings.jwks_uri.as_deref(), Some("https://keys/all"));
        assert_eq!(settings.lookup, TokenLookup::Skipped);
        assert_eq!(settings.expiration_max, Some(Duration::from_secs(7200)));
        assert_eq!(settings.extension, TokenExtension::AsAsked);
        assert_eq!(settings.audiences, ["api", "vault"]);
        for mistake in [
            "--service-account-issuer=",
            "--service-account-issuer=https://a b",
            "--service-account-jwks-uri=http://keys",
            "--service-account-jwks-uri=keys",
            "--service-account-max-token-expiration=59m",
            "--service-account-max-token-expiration=1193047h",
        ] {
            assert!(parse(&[mistake]).is_err(), "{mistake}");
        }
    }
}
