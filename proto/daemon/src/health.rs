//! `/healthz`, `/livez` and `/readyz`: named checks, and the text of the response. Programs read the status code, people the text.

use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;

use crate::exit::chain;
use crate::ready::Readiness;

/// Which endpoint is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// `/healthz`: all checks.
    Health,
    /// `/livez`: a failure calls for a restart.
    Live,
    /// `/readyz`: on a failure no work should be sent.
    Ready,
}

impl Probe {
    /// The endpoint's name, as in its path and in the last line of its text.
    fn name(self) -> &'static str {
        match self {
            Self::Health => "healthz",
            Self::Live => "livez",
            Self::Ready => "readyz",
        }
    }
}

/// Which endpoints a check belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// `/livez`, `/readyz` and `/healthz`.
    Live,
    /// `/readyz` only.
    ReadyOnly,
}

/// Why a check fails. It is logged and not sent to the client.
pub type CheckError = Box<dyn Error + Send + Sync>;

/// Answers at once, from memory: a health request must not wait for what it checks.
pub type CheckFn = Arc<dyn Fn() -> Result<(), CheckError> + Send + Sync>;

/// The checks of one program. Built once, then shared.
#[derive(Clone)]
pub struct Health {
    checks: Vec<(&'static str, Scope, CheckFn)>,
    readiness: Readiness,
}

/// One check's result, the input of [`render`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckResult {
    /// Name as in the verbose text and the path.
    pub name: String,
    /// Whether it passed.
    pub passed: bool,
}

/// The response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthAnswer {
    /// 200, 404 (no such check) or 500.
    pub status: u16,
    /// Plain text.
    pub body: String,
}

impl Health {
    /// Only the check `ping`, which always passes, and one check for each part that takes a guard of `readiness`.
    pub fn new(readiness: Readiness) -> Self {
        Self { checks: vec![("ping", Scope::Live, Arc::new(|| Ok(())))], readiness }
    }

    /// Adds a check. `name` must be unique and is part of a path.
    #[must_use]
    pub fn with(
        mut self,
        name: &'static str,
        scope: Scope,
        check: impl Fn() -> Result<(), CheckError> + Send + Sync + 'static,
    ) -> Self {
        self.checks.push((name, scope, Arc::new(check)));
        self
    }

    /// Answers `GET /<probe>` (with `check` empty) or `GET /<probe>/<check>`; `query` is the raw
    /// query string.
    pub fn answer(&self, probe: Probe, check: &str, query: &str) -> HealthAnswer {
        let mut results = self.results(probe);
        if !check.is_empty() {
            results.retain(|result| result.name == check);
            if results.is_empty() {
                return HealthAnswer { status: 404, body: "404 page not found\n".to_owned() };
            }
        }
        render(probe, &results, query)
    }

    fn results(&self, probe: Probe) -> Vec<CheckResult> {
        let asked = |scope: &Scope| *scope == Scope::Live || probe == Probe::Ready;
        let mut results: Vec<_> = self
            .checks
            .iter()
            .filter(|(_, scope, _)| asked(scope))
            .map(|(name, _, check)| {
                let outcome = check();
                if let Err(reason) = &outcome {
                    let reason = chain(reason.as_ref());
                    tracing::warn!(check = name, reason, "health check failed");
                }
                CheckResult { name: (*name).to_owned(), passed: outcome.is_ok() }
            })
            .collect();
        if probe == Probe::Ready {
            results.extend(
                self.readiness
                    .parts()
                    .into_iter()
                    .map(|(part, passed)| CheckResult { name: part.to_owned(), passed }),
            );
        }
        results
    }
}

/// Renders the response. `verbose` lists the checks, `exclude=<check>` (repeatable) ignores the result of one; a failure is always listed. The last line of a
/// list names the endpoint, as Kubernetes' does.
pub fn render(probe: Probe, results: &[CheckResult], query: &str) -> HealthAnswer {
    let parameters: Vec<_> =
        query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect();
    let verbose = parameters.iter().any(|(key, _)| *key == "verbose");
    let excluded: Vec<_> =
        parameters.iter().filter(|(key, _)| *key == "exclude").map(|(_, name)| *name).collect();

    let mut lines = String::new();
    let mut passed = true;
    for CheckResult { name, passed: this } in results {
        let line = match (excluded.contains(&name.as_str()), this) {
            (true, _) => format!("[+]{name} excluded: ok"),
            (false, true) => format!("[+]{name} ok"),
            (false, false) => format!("[-]{name} failed: reason withheld"),
        };
        passed &= *this || excluded.contains(&name.as_str());
        lines.push_str(&line);
        lines.push('\n');
    }
    let stray = excluded.iter().filter(|name| !results.iter().any(|result| result.name == **name));
    for name in stray {
        // Writing to a String cannot fail.
        let _ =
            writeln!(lines, "warn: some health checks cannot be excluded: no matches for {name:?}");
    }
    let name = probe.name();
    match (passed, verbose) {
        (true, false) => HealthAnswer { status: 200, body: "ok".to_owned() },
        (true, true) => HealthAnswer { status: 200, body: format!("{lines}{name} check passed\n") },
        (false, _) => HealthAnswer { status: 500, body: format!("{lines}{name} check failed\n") },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(etcd: bool) -> Health {
        Health::new(Readiness::default()).with("log", Scope::Live, || Ok(())).with(
            "etcd",
            Scope::ReadyOnly,
            move || if etcd { Ok(()) } else { Err("down".into()) },
        )
    }

    #[test]
    fn health_pages_have_kubernetes_texts() {
        let check = |etcd, probe, path, query, status, body: &str| {
            let answer = health(etcd).answer(probe, path, query);
            assert_eq!((answer.status, answer.body.as_str()), (status, body), "{path}?{query}");
        };
        use Probe::{Health, Live, Ready};
        check(true, Ready, "", "", 200, "ok");
        check(
            true,
            Ready,
            "",
            "verbose",
            200,
            "[+]ping ok\n[+]log ok\n[+]etcd ok\nreadyz check passed\n",
        );
        check(
            false,
            Ready,
            "",
            "",
            500,
            "[+]ping ok\n[+]log ok\n[-]etcd failed: reason withheld\nreadyz check failed\n",
        );
        check(false, Live, "", "", 200, "ok");
        check(true, Live, "", "verbose", 200, "[+]ping ok\n[+]log ok\nlivez check passed\n");
        check(true, Health, "", "verbose", 200, "[+]ping ok\n[+]log ok\nhealthz check passed\n");
        check(
            false,
            Ready,
            "",
            "verbose&exclude=etcd",
            200,
            "[+]ping ok\n[+]log ok\n[+]etcd excluded: ok\nreadyz check passed\n",
        );
        check(true, Ready, "etcd", "", 200, "ok");
        check(true, Ready, "etcd", "verbose=true", 200, "[+]etcd ok\nreadyz check passed\n");
        check(true, Live, "etcd", "", 404, "404 page not found\n");
        let stray = health(true).answer(Live, "", "verbose&exclude=x");
        assert!(stray.body.contains("cannot be excluded: no matches for \"x\"\n"));
    }

    #[test]
    fn a_part_that_is_not_ready_shows() {
        let readiness = Readiness::default();
        let guard = readiness.guard("pods-synced");
        let health = Health::new(readiness);
        assert_eq!(health.answer(Probe::Ready, "pods-synced", "").status, 500);
        assert_eq!(health.answer(Probe::Live, "", "").status, 200);
        drop(guard);
        assert_eq!(health.answer(Probe::Ready, "pods-synced", "").status, 200);
    }
}
