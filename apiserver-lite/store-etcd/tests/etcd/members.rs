//! The members of an etcd of several.

use std::time::Duration;

use etcd_client::Client;

use crate::etcd_process::EtcdProcess;

/// How long a member may take to say who leads.
const STATUS: Duration = Duration::from_secs(1);

/// The members of one etcd.
pub struct Members(pub Vec<EtcdProcess>);

impl Members {
    /// `None`, which is printed, where there is no etcd.
    pub fn start(test: &str, count: usize) -> Option<Self> {
        EtcdProcess::start_members(test, count, None, &[]).map(Self)
    }

    pub fn urls(&self) -> Vec<String> {
        self.0.iter().map(EtcdProcess::url).collect()
    }

    /// Waits for a leader other than `not`.
    pub async fn leader(&self, not: Option<usize>) -> usize {
        loop {
            for (nth, member) in self.0.iter().enumerate() {
                if Some(nth) == not || !member.runs() {
                    continue;
                }
                if let Ok(true) = tokio::time::timeout(STATUS, leads(&member.url())).await {
                    return nth;
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn restart_all(&mut self) {
        self.0.iter_mut().filter(|member| !member.runs()).for_each(EtcdProcess::restart);
    }
}

/// Whether the member at `url` says that it leads.
async fn leads(url: &str) -> bool {
    let Ok(mut client) = Client::connect([url], None).await else { return false };
    let Ok(status) = client.status().await else { return false };
    let own = status.header().map(etcd_client::ResponseHeader::member_id);
    own == Some(status.leader())
}
