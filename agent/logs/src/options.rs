//! Options of a log request, from the query. Pure.

use proto_api::Time;

/// Options of a log request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Follow the log until the container ends.
    pub follow: bool,
    /// Show the previous instance.
    pub previous: bool,
    /// Start each line with its time.
    pub timestamps: bool,
    /// Show at most this many lines from the end.
    pub tail_lines: Option<u64>,
    /// Show at most this many bytes.
    pub limit_bytes: Option<u64>,
    /// Show entries from this time on.
    pub since: Option<LogStart>,
}

/// The time from which log lines are returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStart {
    /// Seconds before now.
    SecondsAgo(u64),
    /// Seconds since 1970.
    Unix(i64),
}

/// An invalid query; returned to the client with status 400 or 422.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{parameter}: invalid value {value:?}: {must}")]
pub struct BadOption {
    parameter: &'static str,
    value: String,
    must: &'static str,
}

impl LogOptions {
    /// Parses decoded parameters. Unknown ones are ignored, and the last of several counts.
    pub fn parse<'a>(
        parameters: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, BadOption> {
        let mut options = Self::default();
        for (key, value) in parameters {
            match key {
                "follow" => options.follow = flag("follow", value)?,
                "previous" => options.previous = flag("previous", value)?,
                "timestamps" => options.timestamps = flag("timestamps", value)?,
                "tailLines" => options.tail_lines = Some(number("tailLines", value, 0)?),
                "limitBytes" => options.limit_bytes = Some(number("limitBytes", value, 1)?),
                "sinceSeconds" => {
                    options.since = Some(LogStart::SecondsAgo(number("sinceSeconds", value, 1)?));
                }
                "sinceTime" => {
                    let time = value.parse::<Time>().ok().and_then(Time::unix);
                    let bad =
                        || bad("sinceTime", value, "must be a time such as 2024-01-02T15:04:05Z");
                    options.since = Some(LogStart::Unix(time.ok_or_else(bad)?));
                }
                _ => {}
            }
        }
        Ok(options)
    }
}

fn flag(parameter: &'static str, value: &str) -> Result<bool, BadOption> {
    match value {
        "" | "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(bad(parameter, value, "must be true or false")),
    }
}

fn number(parameter: &'static str, value: &str, least: u64) -> Result<u64, BadOption> {
    let must = if least == 0 { "must be 0 or more" } else { "must be 1 or more" };
    value.parse().ok().filter(|number| *number >= least).ok_or_else(|| bad(parameter, value, must))
}

fn bad(parameter: &'static str, value: &str, must: &'static str) -> BadOption {
    BadOption { parameter, value: value.to_owned(), must }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<LogOptions, String> {
        LogOptions::parse(pairs.iter().copied()).map_err(|error| error.to_string())
    }

    #[test]
    fn parameters_are_those_of_kubernetes() {
        let options = parse(&[
            ("follow", "true"),
            ("timestamps", "1"),
            ("tailLines", "0"),
            ("limitBytes", "9"),
            ("sinceTime", "1970-01-01T00:01:00Z"),
            ("x", "y"),
        ]);
        let expected = LogOptions {
            follow: true,
            timestamps: true,
            tail_lines: Some(0),
            limit_bytes: Some(9),
            since: Some(LogStart::Unix(60)),
            previous: false,
        };
        assert_eq!(options, Ok(expected));
    }

    #[test]
    fn nonsense_is_named() {
        for (key, value) in [
            ("tailLines", "-1"),
            ("limitBytes", "0"),
            ("sinceSeconds", "x"),
            ("follow", "maybe"),
            ("sinceTime", "now"),
        ] {
            let error = parse(&[(key, value)]).expect_err("invalid");
            assert!(error.starts_with(&format!("{key}: invalid value {value:?}: must")), "{error}");
        }
    }
}
