//! Flags of how many requests are served at a time, and of who shares what with whom.

use apiserver_core::config::{RequestLimits, RequestSharing};
use clap::ArgAction;
use proto_daemon::flags::FlagError;

/// The flags.
#[derive(clap::Args, Clone, Debug)]
pub struct RequestFlags {
    /// Most requests that read, at a time; 0 for any number. With priority and fairness it is a part of the seats that priority levels have together, too.
    #[arg(long, value_name = "COUNT", default_value_t = RequestLimits::default().reading)]
    max_requests_inflight: u32,
    /// Most requests that change something, at a time; 0 for any number. With priority and fairness it is a part of those seats, too.
    #[arg(long, value_name = "COUNT", default_value_t = RequestLimits::default().mutating)]
    max_mutating_requests_inflight: u32,
    /// Whether FlowSchemas and PriorityLevelConfigurations decide which requests are served first, and who waits.
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    enable_priority_and_fairness: bool,
}

impl RequestFlags {
    /// The limits that the flags say; without the feature `has_fairness` there are no levels.
    ///
    /// # Errors
    /// There would be no seat.
    pub fn limits(&self, has_fairness: bool) -> Result<RequestLimits, FlagError> {
        let sharing = match has_fairness && self.enable_priority_and_fairness {
            true => RequestSharing::Fair,
            false => RequestSharing::Plain,
        };
        let (reading, mutating) = (self.max_requests_inflight, self.max_mutating_requests_inflight);
        let limits = RequestLimits { reading, mutating, sharing };
        if sharing == RequestSharing::Fair && limits.seats() == 0 {
            return Err(FlagError::new(
                "--max-requests-inflight and --max-mutating-requests-inflight must not both be 0 with --enable-priority-and-fairness: no request would be served",
            ));
        }
        Ok(limits)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        flags: RequestFlags,
    }

    fn limits(args: &[&str]) -> Result<RequestLimits, String> {
        let alone = Alone::try_parse_from([&["program"], args].concat());
        let flags = alone.map_err(|error| error.to_string())?.flags;
        flags.limits(true).map_err(|error| error.to_string())
    }

    #[test]
    fn limits_are_seats_unless_fairness_is_switched_off() {
        assert_eq!(limits(&[]), Ok(RequestLimits::default()));
        assert_eq!(RequestLimits::default().seats(), 600);
        let both = ["--max-requests-inflight=0", "--max-mutating-requests-inflight=0"];
        assert!(limits(&both).unwrap_err().contains("must not both be 0"));
        let plain = RequestLimits { reading: 0, mutating: 0, sharing: RequestSharing::Plain };
        let args = [&both[..], &["--enable-priority-and-fairness=false"]].concat();
        assert_eq!(limits(&args), Ok(plain));
        let alone = Alone::try_parse_from(["program"]).unwrap();
        assert_eq!(alone.flags.limits(false).unwrap().sharing, RequestSharing::Plain);
        assert_eq!(limits(&["--max-requests-inflight=7"]).unwrap().seats(), 207);
        assert!(limits(&["--max-requests-inflight=-1"]).is_err());
    }
}
