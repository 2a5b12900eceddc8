//! The headers that say which command a request is of, for the server's operators: `Kubectl-Command` with its words without arguments, and
//! `Kubectl-Session`, the same for all requests of a process.

use http::{HeaderMap, HeaderName, HeaderValue};
use uuid::Uuid;

const COMMAND: HeaderName = HeaderName::from_static("kubectl-command");
const SESSION: HeaderName = HeaderName::from_static("kubectl-session");

/// Variables of the environment that turn them off with 0 or false; the first that is set counts.
const SWITCHES: [&str; 2] = ["ORCHCTL_COMMAND_HEADERS", "KUBECTL_COMMAND_HEADERS"];

/// The headers of a command, such as `orchctl rollout status`; none where the environment turns them off.
pub fn headers(command: &str, variable: impl Fn(&str) -> Option<String>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let switch = SWITCHES.into_iter().find_map(variable).unwrap_or_default();
    let is_off = matches!(switch.to_ascii_lowercase().as_str(), "0" | "false");
    if let (false, Ok(command)) = (is_off, HeaderValue::from_str(command)) {
        let session = HeaderValue::from_str(&Uuid::new_v4().to_string());
        headers.insert(COMMAND, command);
        headers.extend(session.ok().map(|session| (SESSION, session)));
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_turns_them_off() {
        for (name, value, are_there) in [
            ("KUBECTL_COMMAND_HEADERS", "false", false),
            ("KUBECTL_COMMAND_HEADERS", "0", false),
            ("ORCHCTL_COMMAND_HEADERS", "False", false),
            ("KUBECTL_COMMAND_HEADERS", "true", true),
            ("OTHER", "false", true),
        ] {
            let set = |asked: &str| (asked == name).then(|| value.to_owned());
            let headers = headers("orchctl get", set);
            assert_eq!(headers.get("Kubectl-Command").is_some(), are_there, "{name}={value}");
            assert_eq!(headers.get("Kubectl-Session").is_some(), are_there, "{name}={value}");
        }
        let both = |name: &str| Some((name == SWITCHES[0]).to_string());
        assert_eq!(headers("orchctl rollout status", both)[COMMAND], "orchctl rollout status");
    }
}
