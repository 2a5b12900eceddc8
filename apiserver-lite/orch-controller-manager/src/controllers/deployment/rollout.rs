//! How large each replica set may be now. Never more pods than the surge allows, never fewer available than the
//! strategy promises.

use proto_api::IntOrString;
use proto_api::apps::v1::{Deployment, ReplicaSet};

/// A replica set and the size it is to have.
pub struct Scale<'a> {
    /// The set.
    pub set: &'a ReplicaSet,
    /// Its size.
    pub replicas: i32,
}

/// What the sizes of all sets come to.
pub struct Sizes {
    new: i32,
    old: i32,
    new_available: i32,
    old_available: i32,
    old_pods: i32,
}

impl Sizes {
    /// Adds them up.
    pub fn of(newest: Option<&ReplicaSet>, old: &[&ReplicaSet]) -> Self {
        Self {
            new: newest.map_or(0, size),
            old: old.iter().map(|set| size(set)).sum(),
            new_available: newest.map_or(0, |set| set.status.available_replicas),
            old_available: old.iter().map(|set| set.status.available_replicas).sum(),
            old_pods: old.iter().map(|set| set.status.replicas).sum(),
        }
    }

    /// Pods that all sets together are to have.
    pub fn total(&self) -> i32 {
        self.new + self.old
    }
}

/// Pods that the deployment asks for.
pub fn replicas(deployment: &Deployment) -> i32 {
    deployment.spec.replicas.unwrap_or(1)
}

fn size(set: &ReplicaSet) -> i32 {
    set.spec.replicas.unwrap_or(1)
}

fn recreates(deployment: &Deployment) -> bool {
    deployment.spec.strategy.type_ == "Recreate"
}

/// Pods above the wanted number that a rollout may make.
fn max_surge(deployment: &Deployment) -> i32 {
    let rolling = deployment.spec.strategy.rolling_update.as_ref();
    match rolling.and_then(|rolling| rolling.max_surge.as_ref()) {
        Some(surge) => share(surge, replicas(deployment), Round::Up),
        None => share(&IntOrString::from("25%"), replicas(deployment), Round::Up),
    }
}

/// Pods below the wanted number that a rollout may leave available.
pub fn max_unavailable(deployment: &Deployment) -> i32 {
    if recreates(deployment) {
        return 0;
    }
    let wanted = replicas(deployment);
    let rolling = deployment.spec.strategy.rolling_update.as_ref();
    let unavailable = match rolling.and_then(|rolling| rolling.max_unavailable.as_ref()) {
        Some(unavailable) => share(unavailable, wanted, Round::Down),
        None => share(&IntOrString::from("25%"), wanted, Round::Down),
    };
    // With neither, nothing could ever move.
    let stuck = unavailable == 0 && max_surge(deployment) == 0;
    if stuck { 1 } else { unavailable.min(wanted) }
}

#[derive(Clone, Copy)]
enum Round {
    Up,
    Down,
}

/// A number as it is, or a percentage of `whole`.
fn share(value: &IntOrString, whole: i32, round: Round) -> i32 {
    let percent = match value {
        IntOrString::Int(number) => return (*number).max(0),
        IntOrString::String(text) => {
            text.strip_suffix('%').and_then(|text| text.parse::<i64>().ok())
        }
    };
    let part = i64::from(whole) * percent.unwrap_or(0).max(0);
    let part = match round {
        Round::Up => part.div_euclid(100) + i64::from(part.rem_euclid(100) > 0),
        Round::Down => part.div_euclid(100),
    };
    i32::try_from(part).unwrap_or(i32::MAX)
}

/// The size that the newest set is made with; none if it has to wait for the old ones to be gone.
pub fn first_size(deployment: &Deployment, sizes: &Sizes) -> Option<i32> {
    if recreates(deployment) {
        return (sizes.old == 0 && sizes.old_pods == 0).then(|| replicas(deployment));
    }
    Some(grown(deployment, sizes))
}

/// How large the newest set may be with the others as they are.
fn grown(deployment: &Deployment, sizes: &Sizes) -> i32 {
    let wanted = replicas(deployment);
    let room = (wanted + max_surge(deployment) - sizes.total()).max(0);
    wanted.min(sizes.new + room)
}

/// The next sizes: the newest set first; the old ones when it cannot grow.
pub fn steps<'a>(
    deployment: &Deployment,
    newest: Option<&'a ReplicaSet>,
    old: &[&'a ReplicaSet],
) -> Vec<Scale<'a>> {
    let sizes = Sizes::of(newest, old);
    let wanted = replicas(deployment);
    let Some(newest) = newest else {
        let all_to_zero = recreates(deployment) && !deployment.spec.paused;
        let running = old.iter().filter(|set| size(set) > 0 && all_to_zero);
        return running.map(|set| Scale { set, replicas: 0 }).collect();
    };
    if sizes.new > wanted {
        return vec![Scale { set: newest, replicas: wanted }];
    }
    if recreates(deployment) {
        let running: Vec<Scale<'a>> =
            old.iter().filter(|set| size(set) > 0).map(|set| Scale { set, replicas: 0 }).collect();
        if running.is_empty() && sizes.old_pods == 0 && sizes.new < wanted {
            return vec![Scale { set: newest, replicas: wanted }];
        }
        return running;
    }
    if deployment.spec.paused && sizes.old > 0 {
        return Vec::new();
    }
    let grown = grown(deployment, &sizes);
    if grown > sizes.new {
        return vec![Scale { set: newest, replicas: grown }];
    }
    shrink(deployment, &sizes, old)
}

/// Takes pods from the old sets: those that are not available first, they serve nobody; then as many of the
/// others as the strategy lets go.
fn shrink<'a>(deployment: &Deployment, sizes: &Sizes, old: &[&'a ReplicaSet]) -> Vec<Scale<'a>> {
    let promised = replicas(deployment) - max_unavailable(deployment);
    let new_missing = sizes.new - sizes.new_available;
    let mut broken_room = (sizes.total() - promised - new_missing).max(0);
    let mut room = (sizes.new_available + sizes.old_available - promised).max(0);
    let mut steps = Vec::new();
    for set in old.iter().copied().filter(|set| size(set) > 0) {
        let broken = (size(set) - set.status.available_replicas).clamp(0, broken_room);
        broken_room -= broken;
        let working = (size(set) - broken).min(room).min(broken_room);
        room -= working;
        broken_room -= working;
        if broken + working > 0 {
            steps.push(Scale { set, replicas: size(set) - broken - working });
        }
    }
    steps
}
