//! Renews a certificate before it expires.

use std::time::Duration;

use prometheus::{Gauge, IntCounter};
use proto_client::Client;
use proto_daemon::backoff::{Backoff, Retries};
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;

use crate::certificate_spec::{CertificateLifetime, CertificateSpec};
use crate::issue::{Authority, IssueError, IssueOrder};
use crate::store::Store;
use crate::unix_time::unix_now;

/// Interval in which a valid certificate's lifetime is checked and its metric updated.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
const RETRY: Backoff = Backoff { first: Duration::from_secs(2), longest: Duration::from_secs(300) };

/// Renews one certificate.
pub struct CertificateRenewer {
    pub store: Store,
    /// Its requirements.
    pub wanted: CertificateSpec,
    /// The API server that takes requests.
    pub authority: Client,
    /// Metric: seconds until it expires.
    pub ttl: Gauge,
    /// Metric: failed renewals.
    pub errors: IntCounter,
}

impl CertificateRenewer {
    /// Renews for as long as the agent runs.
    pub async fn run(self, page: TaskStatus) {
        // Randomized, so that nodes that started together do not renew together.
        let share = f64::from(rand::random::<u16>()) / f64::from(u16::MAX);
        let mut retries = Retries::new(RETRY);
        loop {
            let life = self.life();
            self.report_lifetime(life);
            let now = unix_now();
            if let Some(due) = life.map(|life| life.renew_at(share))
                && due > now
            {
                page.done(format!("renewed at {}", proto_api::Time::from_unix(due)));
                let left = u64::try_from(due - now).unwrap_or(0);
                tokio::time::sleep(Duration::from_secs(left).min(CHECK_INTERVAL)).await;
                continue;
            }
            page.started("a certificate is due");
            match self.renew(&self.authority).await {
                Ok(()) => {
                    retries.reset();
                    tracing::info!(certificate = self.store.pair(), "certificate renewed");
                    // One that is due at once, for example since this node's clock is ahead, is not renewed in a loop.
                    tokio::time::sleep(RETRY.first).await;
                }
                Err(error) => {
                    self.errors.inc();
                    let error = chain(&error);
                    tracing::warn!(
                        certificate = self.store.pair(),
                        error,
                        "cannot renew the certificate; retried"
                    );
                    page.failed(error);
                    tokio::time::sleep(retries.next_delay(rand::random())).await;
                }
            }
        }
    }

    /// The lifetime of the current certificate if it meets the requirements.
    fn life(&self) -> Option<CertificateLifetime> {
        let pem = self.store.current().ok().flatten()?;
        self.wanted.is_met_by(&pem).then(|| CertificateLifetime::from_pem(&pem)).flatten()
    }

    fn report_lifetime(&self, life: Option<CertificateLifetime>) {
        let left = life.map_or(f64::INFINITY, |life| (life.ends - unix_now()) as f64);
        self.ttl.set(left);
    }

    async fn renew(&self, authority: &dyn Authority) -> Result<(), IssueError> {
        IssueOrder { store: &self.store, wanted: &self.wanted, authority }.issue().await
    }
}
