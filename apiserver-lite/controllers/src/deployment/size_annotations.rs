//! The annotations `desired-replicas` and `max-replicas` of a replica set: the size of its deployment when it was last scaled. A deployment of another size
//! is scaled in proportion before it rolls out.

use proto_api::apps::v1::{Deployment, ReplicaSet};
use proto_api::names::Names;

use super::rollout;

/// The annotations that sets get when they are scaled now.
pub struct SizeAnnotations {
    /// The replicas of the deployment.
    desired: (String, String),
    /// The most pods of all sets.
    most: (String, String),
}

impl SizeAnnotations {
    /// Those for the deployment as it is.
    pub fn from_deployment(names: &Names, deployment: &Deployment) -> Self {
        let replicas = rollout::replicas(deployment);
        let most = replicas.saturating_add(rollout::max_surge(deployment));
        let name = |name: &str| names.sub_label("deployment", name);
        Self {
            desired: (name("desired-replicas"), replicas.to_string()),
            most: (name("max-replicas"), most.to_string()),
        }
    }

    /// Names and values.
    pub fn entries(&self) -> [&(String, String); 2] {
        [&self.desired, &self.most]
    }

    /// The most pods of all sets when this one was last scaled; none if it does not say so.
    pub fn most_before(&self, set: &ReplicaSet) -> Option<i64> {
        let text = set.metadata.annotations.get(&self.most.0)?;
        text.parse::<i32>().ok().map(i64::from).filter(|most| *most > 0)
    }

    /// Whether the set has pods and was scaled for other replicas of the deployment. Of a set without a number this is not known.
    pub fn replicas_changed(&self, set: &ReplicaSet) -> bool {
        let (name, now) = &self.desired;
        let before = set.metadata.annotations.get(name).filter(|text| text.parse::<i32>().is_ok());
        rollout::size(set) > 0 && before.is_some_and(|before| before != now)
    }
}
