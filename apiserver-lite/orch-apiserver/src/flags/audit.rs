//! Flags of the audit log.

use std::path::PathBuf;
use std::time::Duration;

use apiserver_audit::{
    AuditSettings, BatchSettings, LogPath, LogSettings, Mode, Throttle, WebhookSettings,
};
use clap::{ArgAction, ValueEnum};
use proto_daemon::go_duration;

/// The flags. Nothing is recorded without --audit-policy-file and one of --audit-log-path and --audit-webhook-config-file, as in Kubernetes.
#[derive(clap::Args, Clone, Debug)]
pub struct AuditFlags {
    /// File with the audit policy.
    #[arg(long, value_name = "FILE")]
    audit_policy_file: Option<PathBuf>,
    /// The audit log; - is standard output.
    #[arg(long, value_name = "FILE")]
    audit_log_path: Option<PathBuf>,
    /// Form of the lines of the audit log.
    #[arg(long, value_enum, default_value = "json")]
    audit_log_format: Format,
    /// Days after which a rotated audit log is removed; 0 keeps it.
    #[arg(long, value_name = "DAYS", default_value_t = 0)]
    audit_log_maxage: u32,
    /// Most rotated audit logs; 0 keeps all.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    audit_log_maxbackup: u32,
    /// Size at which the audit log is rotated, in MiB; 0 is 100.
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    audit_log_maxsize: u32,
    /// Whether requests wait for the audit log, are refused when it cannot be written, or neither.
    #[arg(long, value_enum, default_value = "blocking")]
    audit_log_mode: ModeName,
    /// Most events that wait to be written in the mode batch.
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    audit_log_batch_buffer_size: usize,
    /// Client configuration of the service that events are posted to.
    #[arg(long, value_name = "FILE")]
    audit_webhook_config_file: Option<PathBuf>,
    /// Pause before events are posted a second time.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = go_duration::parse)]
    audit_webhook_initial_backoff: Duration,
    /// Whether requests wait for the service, are refused when it does not answer, or neither.
    #[arg(long, value_enum, default_value = "batch")]
    audit_webhook_mode: ModeName,
    /// Most events that wait to be posted in the mode batch.
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    audit_webhook_batch_buffer_size: usize,
    /// Most events that are posted together.
    #[arg(long, value_name = "COUNT", default_value_t = 400)]
    audit_webhook_batch_max_size: usize,
    /// Longest wait until a batch that is not full is posted.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = go_duration::parse)]
    audit_webhook_batch_max_wait: Duration,
    /// Whether the batches a second are limited.
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    audit_webhook_batch_throttle_enable: bool,
    /// Batches a second, on average.
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    audit_webhook_batch_throttle_qps: u32,
    /// Batches at once.
    #[arg(long, value_name = "COUNT", default_value_t = 15)]
    audit_webhook_batch_throttle_burst: u32,
}

/// Values of `--audit-log-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    #[value(name = "json")]
    Json,
}

/// Values of `--audit-log-mode` and `--audit-webhook-mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModeName {
    #[value(name = "batch")]
    Batch,
    #[value(name = "blocking")]
    Blocking,
    #[value(name = "blocking-strict")]
    BlockingStrict,
}

impl ModeName {
    fn mode(self, batch: BatchSettings) -> Mode {
        match self {
            Self::Batch => Mode::Batch(batch),
            Self::Blocking => Mode::Blocking,
            Self::BlockingStrict => Mode::BlockingStrict,
        }
    }
}

impl AuditFlags {
    /// What the flags say; `None` if nothing is recorded.
    pub fn settings(self) -> Option<AuditSettings> {
        let (log, webhook) = (self.log(), self.webhook());
        let is_stored = log.is_some() || webhook.is_some();
        let policy_file = self.audit_policy_file.filter(|_| is_stored)?;
        Some(AuditSettings { policy_file, log, webhook })
    }

    fn log(&self) -> Option<LogSettings> {
        let path = self.audit_log_path.clone()?;
        let batch = BatchSettings {
            buffer_size: self.audit_log_batch_buffer_size,
            max_size: 1,
            max_wait: Duration::ZERO,
            throttle: None,
        };
        Some(LogSettings {
            path: match path.as_os_str() == "-" {
                true => LogPath::Stdout,
                false => LogPath::File(path),
            },
            max_age_days: self.audit_log_maxage,
            max_backups: self.audit_log_maxbackup,
            max_size_mib: self.audit_log_maxsize,
            mode: self.audit_log_mode.mode(batch),
        })
    }

    fn webhook(&self) -> Option<WebhookSettings> {
        let throttle = Throttle {
            per_second: self.audit_webhook_batch_throttle_qps,
            burst: self.audit_webhook_batch_throttle_burst,
        };
        let batch = BatchSettings {
            buffer_size: self.audit_webhook_batch_buffer_size,
            max_size: self.audit_webhook_batch_max_size,
            max_wait: self.audit_webhook_batch_max_wait,
            throttle: self.audit_webhook_batch_throttle_enable.then_some(throttle),
        };
        Some(WebhookSettings {
            config_file: self.audit_webhook_config_file.clone()?,
            initial_backoff: self.audit_webhook_initial_backoff,
            mode: self.audit_webhook_mode.mode(batch),
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        flags: AuditFlags,
    }

    fn parse(args: &[&str]) -> Result<Option<AuditSettings>, clap::Error> {
        let alone = Alone::try_parse_from([&["program"], args].concat());
        alone.map(|alone| alone.flags.settings())
    }

    #[test]
    fn a_policy_and_a_place_make_a_log() {
        assert_eq!(parse(&[]).unwrap(), None);
        assert_eq!(parse(&["--audit-policy-file=/p"]).unwrap(), None);
        assert_eq!(parse(&["--audit-log-path=/l"]).unwrap(), None, "no policy records nothing");
        let both = parse(&["--audit-policy-file=/p", "--audit-log-path=-"]).unwrap().unwrap();
        assert_eq!((both.policy_file, both.webhook), (PathBuf::from("/p"), None));
        let log = both.log.unwrap();
        assert_eq!((log.path, log.mode), (LogPath::Stdout, Mode::Blocking));
    }

    #[test]
    fn flags_have_kubernetes_defaults() {
        let args = ["--audit-policy-file=/p", "--audit-webhook-config-file=/w"];
        let webhook = parse(&args).unwrap().unwrap().webhook.unwrap();
        let throttle = Some(Throttle { per_second: 10, burst: 15 });
        let max_wait = Duration::from_secs(30);
        let batch = BatchSettings { buffer_size: 10_000, max_size: 400, max_wait, throttle };
        assert_eq!(webhook.mode, Mode::Batch(batch));
        assert_eq!(webhook.initial_backoff, Duration::from_secs(10));
        let args = [
            "--audit-policy-file=/p",
            "--audit-log-path=/l",
            "--audit-log-maxage=30",
            "--audit-log-maxbackup=10",
            "--audit-log-maxsize=50",
            "--audit-log-mode=blocking-strict",
            "--audit-log-format=json",
        ];
        let log = parse(&args).unwrap().unwrap().log.unwrap();
        assert_eq!((log.max_age_days, log.max_backups, log.max_size_mib), (30, 10, 50));
        assert_eq!((log.path, log.mode), (LogPath::File("/l".into()), Mode::BlockingStrict));
        for mistake in
            ["--audit-log-mode=eager", "--audit-log-format=legacy", "--audit-log-maxage=-1"]
        {
            assert!(parse(&[mistake]).is_err(), "{mistake}");
        }
    }
}
