//! What a seed stands for, and where the agent dies.

use super::random::{Chance, Scale};

/// The histories of a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// One, with faults of all kinds, and deaths wherever the seed wants them.
    Troubled(Scale),
    /// No call fails. As many histories as there are moments in it: the agent dies in each of them in turn.
    OneDeath(Scale),
    /// The same, and the agent that comes after dies as well, soon.
    TwoDeaths,
}

/// Seeds after which the courses come in the same order again.
const ROUND: u64 = 2000;
/// A seed with a large walk, one with a small one, and one with a small one of two deaths.
const LARGE_WALK: u64 = 0;
pub const ONE_DEATH: u64 = 50;
pub const TWO_DEATHS: u64 = 25;
/// A second death comes at most this many moments after the first.
const SOON: u64 = 60;

impl Course {
    /// Most seeds are small, one in twenty is large; walks are about half of all histories.
    pub fn from_seed(seed: u64) -> Self {
        match seed {
            _ if seed % ROUND == LARGE_WALK => Self::OneDeath(Scale::Large),
            _ if seed % 100 == ONE_DEATH => Self::OneDeath(Scale::Small),
            _ if seed % 200 == TWO_DEATHS => Self::TwoDeaths,
            _ if seed.is_multiple_of(20) => Self::Troubled(Scale::Large),
            _ => Self::Troubled(Scale::Small),
        }
    }

    pub fn scale(self) -> Scale {
        match self {
            Self::Troubled(scale) | Self::OneDeath(scale) => scale,
            Self::TwoDeaths => Scale::Small,
        }
    }

    /// Where the agent dies in the history of the walk whose first death, or only one, is in `moment`.
    pub fn deaths(self, seed: u64, moment: u64) -> Deaths {
        let second = match self {
            Self::TwoDeaths => Some(moment + 1 + Chance(seed ^ moment << 32).below(SOON)),
            Self::Troubled(_) | Self::OneDeath(_) => None,
        };
        Deaths::At([Some(moment), second].into_iter().flatten().collect())
    }
}

/// Who dies when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deaths {
    /// Calls fail, and deaths are wherever the seed wants them.
    BySeed,
    /// No call fails, and the agent dies in these moments.
    At(Vec<u64>),
}

impl Deaths {
    /// As somebody wants it who looks into a history.
    pub fn told() -> Self {
        let Ok(told) = std::env::var("ORCH_DEATHS") else { return Self::BySeed };
        Self::At(told.split(',').map(|moment| moment.parse().expect("a number")).collect())
    }
}

impl std::fmt::Display for Deaths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self::At(moments) = self else { return Ok(()) };
        let moments: Vec<String> = moments.iter().map(u64::to_string).collect();
        write!(f, " ORCH_DEATHS={}", moments.join(","))
    }
}

#[test]
fn courses_are_many_small_ones_and_few_large_ones() {
    let count = |wanted| (0..ROUND).filter(|seed| Course::from_seed(*seed) == wanted).count();
    assert_eq!(count(Course::OneDeath(Scale::Large)), 1);
    assert_eq!(count(Course::OneDeath(Scale::Small)), 20);
    assert_eq!(count(Course::TwoDeaths), 10);
    assert_eq!(count(Course::Troubled(Scale::Large)), 99);
    assert_eq!(count(Course::Troubled(Scale::Small)), 1870);
    assert_eq!(Course::from_seed(ONE_DEATH), Course::OneDeath(Scale::Small));
    assert_eq!(Course::from_seed(TWO_DEATHS), Course::TwoDeaths);
}
