//! Ties: which of equally good nodes a pod gets, and where the search for a preemption begins.

use proto_api::ObjectKey;

/// How ties are broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ties {
    /// The node with fewer pods, then the first by name.
    #[default]
    FewerPods,
    /// One that looks chosen at random, and is the same whenever the seed, the pod's name and the nodes are.
    Seeded(u64),
}

impl Ties {
    /// The rank of a node with this many pods for a pod; the smallest is the best.
    pub fn rank(self, pod: &ObjectKey, node: &str, pod_count: i64) -> u64 {
        match self {
            Self::FewerPods => u64::try_from(pod_count).unwrap_or(0),
            Self::Seeded(seed) => {
                let texts = [pod.namespace.as_str(), pod.name.as_str(), node];
                texts.into_iter().fold(mix(seed), hash)
            }
        }
    }
}

/// Where the search of the `attempt`th preemption for a pod begins among so many nodes: elsewhere each time, and alike for the same pod and attempt.
pub fn search_offset(pod_uid: &str, attempt: u32, nodes: usize) -> usize {
    let number = hash(mix(u64::from(attempt)), pod_uid);
    let nodes = u64::try_from(nodes).unwrap_or(u64::MAX);
    usize::try_from(number.checked_rem(nodes).unwrap_or(0)).unwrap_or(0)
}

/// FNV-1a, and a separator that no name has.
fn hash(state: u64, text: &str) -> u64 {
    let bytes = text.bytes().chain([b'/']);
    let step = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    mix(bytes.fold(state, step))
}

/// The finalizer of SplitMix64: each bit of the result depends on all of the input.
fn mix(state: u64) -> u64 {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}
