//! Leader election: one of several instances of a program is active, the others wait.
//!
//! [`Election`], which is pure, decides which lease to write and when, [`Claimant`] its content; [`Candidate`] reads and writes. As in Kubernetes an
//! instance that cannot renew within the renew deadline, which is shorter than the lease's duration, has lost and must stop at once, before another one
//! may begin.

use std::time::Duration;

use prometheus::IntGauge;
use proto_api::coordination::v1::Lease;
use proto_daemon::exit::chain;
use proto_daemon::leader_flags::LeaderElection;
use proto_daemon::statusz::TaskStatus;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::api::Api;
use crate::client::Client;
use crate::error::ClientError;
use crate::lease::{Claim, Claimant, Holder, wall_clock};
use crate::metrics::LeaderMetrics;
use crate::params::WriteParams;

/// Longest lease, seconds; at most [`crate::lease::DURATION_SECS_MAX`], up to which other holders' durations count.
pub const LEASE_SECS_MAX: u16 = 3600;

/// The times of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Others may acquire the lease when it was not renewed for this long; whole seconds, at least one.
    pub lease: Duration,
    /// An instance that could not renew for this long has lost; shorter than `lease`.
    pub renew_deadline: Duration,
    /// Between two tries.
    pub retry_period: Duration,
}

/// Why the times are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimesError {
    /// Others would begin before this one ends.
    #[error("--leader-elect-lease-duration must be greater than --leader-elect-renew-deadline")]
    Lease,
    /// A single late response would lose the lease.
    #[error("--leader-elect-renew-deadline must be greater than --leader-elect-retry-period")]
    RenewDeadline,
    /// It would retry without a pause.
    #[error("--leader-elect-retry-period must be greater than zero")]
    RetryPeriod,
    /// A lease has whole seconds, within bounds.
    #[error("--leader-elect-lease-duration must be between 1s and {LEASE_SECS_MAX}s")]
    Range,
}

impl Times {
    /// The times of these settings, unchecked.
    #[must_use]
    pub fn from_settings(settings: &LeaderElection) -> Self {
        Self {
            lease: settings.lease_duration,
            renew_deadline: settings.renew_deadline,
            retry_period: settings.retry_period,
        }
    }

    /// Checks that no two instances can be active at a time.
    ///
    /// # Errors
    /// The invalid flag, with its rule.
    pub fn check(self) -> Result<Self, TimesError> {
        let most = Duration::from_secs(u64::from(LEASE_SECS_MAX));
        if self.lease < Duration::from_secs(1) || self.lease > most {
            return Err(TimesError::Range);
        }
        // What others read is whole seconds.
        if Duration::from_secs(u64::from(self.lease_secs())) <= self.renew_deadline {
            return Err(TimesError::Lease);
        }
        if self.renew_deadline <= self.retry_period {
            return Err(TimesError::RenewDeadline);
        }
        if self.retry_period.is_zero() {
            return Err(TimesError::RetryPeriod);
        }
        Ok(self)
    }

    fn lease_secs(self) -> u16 {
        u16::try_from(self.lease.as_secs()).unwrap_or(LEASE_SECS_MAX).clamp(1, LEASE_SECS_MAX)
    }
}

/// Whether this instance leads, to its knowledge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Election {
    /// Another instance leads, or none.
    #[default]
    Waiting,
    /// This one leads, since it sent the last successful renewal.
    Leading {
        /// When that renewal was sent.
        renewed: Instant,
    },
    /// It led and must stop, for good: another instance may have been active meanwhile.
    Lost,
}

impl Election {
    /// Records the outcome of an attempt that was sent at `asked` and answered at `now`.
    pub fn tried(&mut self, outcome: &AttemptOutcome, times: Times, asked: Instant, now: Instant) {
        let in_time = now.saturating_duration_since(asked) < times.renew_deadline;
        *self = match (&self, outcome) {
            (Self::Lost, _) => Self::Lost,
            // Such a late response says nothing about the present.
            (Self::Waiting, AttemptOutcome::Held) if in_time => Self::Leading { renewed: asked },
            (Self::Waiting, _) => Self::Waiting,
            (Self::Leading { .. }, AttemptOutcome::Held) if in_time => {
                Self::Leading { renewed: asked }
            }
            (Self::Leading { .. }, AttemptOutcome::OfAnother) => Self::Lost,
            (Self::Leading { renewed }, _) if is_over(*renewed, times, now) => Self::Lost,
            (Self::Leading { renewed }, _) => Self::Leading { renewed: *renewed },
        };
    }

    /// How long an attempt that begins at `now` may take.
    pub fn patience(&self, times: Times, now: Instant) -> Duration {
        match self {
            Self::Leading { renewed } => {
                times.renew_deadline.saturating_sub(now.saturating_duration_since(*renewed))
            }
            Self::Waiting | Self::Lost => times.renew_deadline,
        }
    }
}

fn is_over(renewed: Instant, times: Times, now: Instant) -> bool {
    now.saturating_duration_since(renewed) >= times.renew_deadline
}

/// Who holds the lease after an attempt to acquire or renew it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The lease is this instance's and was written.
    Held,
    /// The lease is another's.
    OfAnother,
    /// Unknown: no response, or another write came first.
    Unknown,
}

/// The lease was lost: another instance may be active now.
#[derive(Debug, thiserror::Error)]
#[error("leader election lost")]
pub struct LeaseLost;

/// Notifies `leading` when this instance becomes the leader: at once without a candidate (no election). Returns when the lease is lost; the program must
/// then end without another write.
pub async fn run_election(
    candidate: &mut Option<Candidate>,
    leading: &watch::Sender<bool>,
) -> LeaseLost {
    let Some(candidate) = candidate else {
        leading.send_replace(true);
        return std::future::pending().await;
    };
    tracing::info!(lease = candidate.holder.lease, "attempting to acquire leader lease");
    candidate.wait().await;
    tracing::info!(lease = candidate.holder.lease, "successfully acquired lease");
    leading.send_replace(true);
    candidate.hold().await;
    LeaseLost
}

/// The candidate that these settings describe, with `lock` as the default name of the lease; `None` without leader election.
///
/// # Errors
/// With these times two instances could lead.
pub fn candidate(
    settings: &LeaderElection,
    client: &Client,
    lock: &str,
    status: TaskStatus,
    metrics: &LeaderMetrics,
) -> Result<Option<Candidate>, TimesError> {
    if !settings.leader_elect {
        return Ok(None);
    }
    let times = Times::from_settings(settings).check()?;
    let or = |text: &str, default: &str| {
        if text.is_empty() { default.to_owned() } else { text.to_owned() }
    };
    let namespace = or(&settings.resource_namespace, client.names().system_namespace());
    let name = or(&settings.resource_name, lock);
    let leads = metrics.gauge(&name);
    let candidate = Candidate::new(client, &namespace, &name, identity(), times, status);
    Ok(Some(Candidate { leads: Some(leads), ..candidate }))
}

/// A unique name of this instance: the host's and a random number.
fn identity() -> String {
    let host = nix::unistd::gethostname().unwrap_or_default();
    format!("{}_{:032x}", host.to_string_lossy(), rand::random::<u128>())
}

/// One instance that takes part in the election.
pub struct Candidate {
    api: Api<Lease>,
    holder: Holder,
    times: Times,
    claimant: Claimant,
    election: Election,
    status: TaskStatus,
    /// Shows whether it leads.
    leads: Option<IntGauge>,
}

impl Candidate {
    /// A candidate for the lease `name` in `namespace`, with `identity` as the holder's name. It has a separate connection.
    pub fn new(
        client: &Client,
        namespace: &str,
        name: &str,
        identity: String,
        times: Times,
        status: TaskStatus,
    ) -> Self {
        let holder = Holder {
            lease: name.to_owned(),
            identity,
            duration_secs: times.lease_secs(),
            owner: None,
        };
        let client = client.with_deadline(times.renew_deadline);
        Self {
            api: Api::new(client, Some(namespace)),
            holder,
            times,
            claimant: Claimant::default(),
            election: Election::Waiting,
            status,
            leads: None,
        }
    }

    /// Returns once this instance leads. Cancel safe.
    pub async fn wait(&mut self) {
        loop {
            self.turn().await;
            if matches!(self.election, Election::Leading { .. }) {
                return;
            }
            sleep(self.pause()).await;
        }
    }

    /// Renews until the lease is lost. Cancel safe: an interrupted renewal is repeated by the next one.
    pub async fn hold(&mut self) {
        while self.election != Election::Lost {
            let pause = self.pause().min(self.election.patience(self.times, Instant::now()));
            sleep(pause).await;
            self.turn().await;
        }
    }

    /// Releases the lease if it is held, so that another instance need not wait. Best effort, for at most the retry period.
    pub async fn release(mut self) {
        let Election::Leading { .. } = self.election else { return };
        let Some(lease) = self.claimant.released(&self.holder, wall_clock()) else { return };
        self.election = Election::Lost;
        let params = WriteParams::default();
        match timeout(self.times.retry_period, self.api.update(&lease, &params)).await {
            Ok(Ok(_)) => tracing::info!(lease = self.holder.lease, "lease released"),
            Ok(Err(error)) => {
                tracing::warn!(
                    lease = self.holder.lease,
                    error = chain(&error),
                    "cannot release the lease; another instance waits until it expires"
                );
            }
            Err(_) => tracing::warn!(
                lease = self.holder.lease,
                "cannot release the lease in time; another instance waits until it expires"
            ),
        }
    }

    /// Jitter of a fifth, so that candidates that began together do not collide at each attempt.
    fn pause(&self) -> Duration {
        self.times.retry_period.mul_f64(1.0 + 0.2 * rand::random::<f64>())
    }

    async fn turn(&mut self) {
        self.status.started("renew");
        let asked = Instant::now();
        let patience = self.election.patience(self.times, asked);
        let tried = timeout(patience, self.attempt()).await;
        let outcome = match tried {
            Ok(Ok(outcome)) => {
                self.status.done(match outcome {
                    AttemptOutcome::Held => "leading",
                    AttemptOutcome::OfAnother | AttemptOutcome::Unknown => "another leads",
                });
                outcome
            }
            Ok(Err(error)) => {
                let cause = chain(&error);
                tracing::warn!(
                    lease = self.holder.lease,
                    error = cause,
                    "cannot acquire or renew the lease; retried"
                );
                self.status.failed(cause);
                AttemptOutcome::Unknown
            }
            Err(_) => {
                // Packets of this connection may be lost.
                self.api.client().reconnect();
                self.claimant.forget();
                self.status.failed("no response before the deadline");
                AttemptOutcome::Unknown
            }
        };
        self.election.tried(&outcome, self.times, asked, Instant::now());
        if let Some(leads) = &self.leads {
            leads.set(matches!(self.election, Election::Leading { .. }).into());
        }
    }

    /// One read, unless the lease is known to be held, and one write if it is held by this instance or free.
    async fn attempt(&mut self) -> Result<AttemptOutcome, ClientError> {
        if !self.claimant.is_held_by(&self.holder) {
            let lease = self.api.find(&self.holder.lease).await?;
            self.claimant.observe_lease(lease, Instant::now());
        }
        let params = WriteParams::default();
        let claim = self.claimant.claim(&self.holder, wall_clock(), Instant::now());
        let written = match claim {
            Claim::Wait { .. } => return Ok(AttemptOutcome::OfAnother),
            Claim::Create(lease) => self.api.create(&lease, &params).await,
            Claim::Update(lease) => self.api.update(&lease, &params).await,
        };
        match written {
            Ok(lease) => {
                self.claimant.observe_lease(Some(lease), Instant::now());
                Ok(AttemptOutcome::Held)
            }
            Err(error) => {
                if error.is_conflict() || error.is_not_found() || error.is_already_exists() {
                    // Another write came first; it is read at the next attempt.
                    tracing::debug!(
                        error = chain(&error),
                        "another client has written the lease; it is read again at the next attempt"
                    );
                    self.claimant.forget();
                    return Ok(AttemptOutcome::Unknown);
                }
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests;
