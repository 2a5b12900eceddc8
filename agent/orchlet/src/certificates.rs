//! Certificates that the agent asks the API server for: one to show to the API server, one to serve with. A key is made once and kept
//! on disk until its certificate is there, so that no retry and no restart makes a second request; a certificate is in force from
//! the moment in which its link is switched, and read again by everything that uses it.
//!
//! ```text
//!   store ── key ──► wanted (pure) ── request ──► API server ── approved, signed ──► store ── link ──► client, endpoint
//!                      ▲                                                               │
//!                      └────────────── at 70 to 90 % of its life ──────────────────────┘
//! ```

pub mod issue;
pub mod store;
pub mod wanted;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus::{Gauge, IntCounter};
use proto_client::Client;
use proto_daemon::backoff::{Backoff, Retries};
use proto_daemon::statusz::TaskStatus;

use issue::{Authority, Issuing};
use store::Store;
use wanted::{Life, Wanted};

/// Between two looks at the clock while a certificate is good: what a metric says is not older.
const LOOK: Duration = Duration::from_secs(60);
/// Between attempts that failed.
const RETRY: Backoff = Backoff { first: Duration::from_secs(2), longest: Duration::from_secs(300) };

/// Keeps one certificate in force.
pub struct Keeper {
    /// Where it is.
    pub store: Store,
    /// What it must say.
    pub wanted: Wanted,
    /// Who signs.
    pub authority: Client,
    /// Seconds until it ends.
    pub ttl: Gauge,
    /// Renewals that failed.
    pub errors: IntCounter,
}

impl Keeper {
    /// Renews for as long as the agent runs.
    pub async fn run(self, page: TaskStatus) {
        // Not all nodes of a cluster, which began together, shall ask together.
        let share = f64::from(rand::random::<u16>()) / f64::from(u16::MAX);
        let mut retries = Retries::new(RETRY);
        loop {
            let life = self.life();
            self.tell(life);
            let now = unix_now();
            if let Some(due) = life.map(|life| life.renew_at(share))
                && due > now
            {
                page.done(format!("renewed at {}", proto_api::Time::from_unix(due)));
                let left = u64::try_from(due - now).unwrap_or(0);
                tokio::time::sleep(Duration::from_secs(left).min(LOOK)).await;
                continue;
            }
            page.started("a certificate is due");
            match self.renew(&self.authority).await {
                Ok(()) => {
                    retries.reset();
                    tracing::info!(certificate = self.store.pair(), "renewed");
                }
                Err(error) => {
                    self.errors.inc();
                    tracing::warn!(certificate = self.store.pair(), error, "not renewed");
                    page.failed(error);
                    tokio::time::sleep(retries.next_delay(rand::random())).await;
                }
            }
        }
    }

    /// The life of the certificate in force, if it says what it must.
    fn life(&self) -> Option<Life> {
        let pem = self.store.current().ok().flatten()?;
        self.wanted.is_met_by(&pem).then(|| Life::of(&pem)).flatten()
    }

    fn tell(&self, life: Option<Life>) {
        let left = life.map_or(f64::INFINITY, |life| (life.ends - unix_now()) as f64);
        self.ttl.set(left);
    }

    async fn renew(&self, authority: &dyn Authority) -> Result<(), String> {
        Issuing { store: &self.store, wanted: &self.wanted, authority }.issue().await
    }
}

/// Seconds since 1970.
pub fn unix_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
