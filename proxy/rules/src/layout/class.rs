//! What becomes of a new connection to a frontend, as one word: the maps hold words, a map of a few verdicts
//! turns each into a chain.

use proxy_netfilter::nft::{Data, Element, Value, Verdict};

use super::rules::REJECT;
use super::{BACKENDS_MAX, HERE_FIRST_SLOT, Map};
use crate::model::Choice;

/// From which endpoints of which key a class draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EndpointPool {
    /// From all of a frontend with an address.
    Service,
    /// From those on this node, of a frontend with an address.
    ServiceHere,
    /// From all of a node port.
    NodePort,
    /// From those on this node, of a node port.
    NodePortHere,
}

impl EndpointPool {
    const ALL: [Self; 4] = [Self::Service, Self::ServiceHere, Self::NodePort, Self::NodePortHere];

    /// The first slot that it draws from.
    pub fn first_slot(self) -> u32 {
        match self {
            Self::Service | Self::NodePort => 0,
            Self::ServiceHere | Self::NodePortHere => HERE_FIRST_SLOT,
        }
    }

    /// Whether it draws from a frontend with an address.
    pub fn has_address(self) -> bool {
        matches!(self, Self::Service | Self::ServiceHere)
    }

    /// The endpoints that may be drawn, among those that a client may come back to.
    pub fn live(self) -> Map {
        match self {
            Self::Service | Self::NodePort => Map::Live,
            Self::ServiceHere | Self::NodePortHere => Map::LiveHere,
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Self::Service => "balance-",
            Self::ServiceHere => "balance-here-",
            Self::NodePort => "balance-node-port-",
            Self::NodePortHere => "balance-node-port-here-",
        }
    }

    fn index(self) -> u32 {
        Self::ALL.into_iter().zip(0..).find(|(draw, _)| *draw == self).map_or(0, |(_, i)| i)
    }
}

/// What becomes of a new connection to a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// It goes to one of so many slots, from 1 to [`BACKENDS_MAX`].
    Balance(EndpointPool, Choice, u32),
    /// It is answered with an error: there are no endpoints.
    Reject,
    /// It is forgotten: there are endpoints, but none that the policy allows.
    Drop,
}

impl Class {
    /// The class by which `count` slots are drawn from, or what `otherwise` says when there are none.
    pub fn for_endpoints(
        draw: EndpointPool,
        choice: Choice,
        count: usize,
        otherwise: Self,
    ) -> Self {
        match u32::try_from(count.min(BACKENDS_MAX)) {
            Ok(0) | Err(_) => otherwise,
            Ok(count) => Self::Balance(draw, choice, count),
        }
    }

    /// The word that stands for it in the maps: two bits of where to draw from, fifteen of how, fifteen of the
    /// number of slots less one.
    pub fn word(self) -> u32 {
        match self {
            Self::Balance(draw, choice, count) => {
                draw.index() << 30 | choice.code() << 15 | (count.saturating_sub(1) & 0x7fff)
            }
            Self::Reject => 0xffff_0001,
            Self::Drop => 0xffff_0002,
        }
    }

    /// The class that a word stands for.
    pub fn from_word(word: u32) -> Option<Self> {
        match word {
            0xffff_0001 => Some(Self::Reject),
            0xffff_0002 => Some(Self::Drop),
            _ => {
                let draw = *EndpointPool::ALL.get(usize::try_from(word >> 30).ok()?)?;
                let choice = Choice::from_code(word >> 15 & 0x7fff)?;
                Some(Self::Balance(draw, choice, (word & 0x7fff) + 1))
            }
        }
    }

    /// Its key in the class map.
    pub fn key(self) -> Value {
        Value::from(self.word().to_ne_bytes())
    }

    /// Its bytes as data of the other maps: two words, of which the second is the class. The first is padding:
    /// `nft` up to 1.0.6 ends with a failed assertion on rules that look up what is in the first register of
    /// another map's data.
    pub fn data(self) -> Value {
        Value::concat(&[&[0; 4], &self.word().to_ne_bytes()])
    }

    /// The class that these data lead to.
    pub fn from_data(data: &[u8]) -> Option<Self> {
        Self::from_word(u32::from_ne_bytes(data.get(4..)?.try_into().ok()?))
    }

    /// Its chain, if it has one.
    pub fn chain(self) -> Option<String> {
        let Self::Balance(draw, choice, count) = self else { return None };
        let prefix = draw.prefix();
        Some(match choice {
            Choice::Random => format!("{prefix}{count}"),
            Choice::Consistent => format!("consistent-{prefix}{count}"),
            Choice::Sticky(seconds) => format!("sticky-{seconds}-{prefix}{count}"),
        })
    }

    /// Its verdict.
    pub fn verdict(self) -> Verdict {
        match (self.chain(), self) {
            (Some(chain), _) => Verdict::Goto(chain),
            (None, Self::Drop) => Verdict::Drop,
            (None, _) => Verdict::Goto(REJECT.to_owned()),
        }
    }

    /// Its element of the class map.
    pub fn element(self) -> Element {
        Element::entry(self.key(), Data::Verdict(self.verdict()))
    }
}
