//! The class of a frontend, as one word: what happens to a new connection. The class map turns it into a verdict.

use proxy_netfilter::nft::{Data, Element, Value, Verdict};

use super::rules::REJECT;
use super::{BACKENDS_MAX, HERE_FIRST_SLOT, Map};
use crate::model::Choice;

/// The endpoints that a class draws from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EndpointPool {
    /// All endpoints of a frontend with an address.
    Service,
    /// Those on this node, of a frontend with an address.
    ServiceHere,
    /// All endpoints of a node port.
    NodePort,
    /// Those on this node, of a node port.
    NodePortHere,
}

impl EndpointPool {
    const ALL: [Self; 4] = [Self::Service, Self::ServiceHere, Self::NodePort, Self::NodePortHere];

    /// The first of the consecutive slots that its endpoints take in the slot map.
    pub fn first_slot(self) -> u32 {
        match self {
            Self::Service | Self::NodePort => 0,
            Self::ServiceHere | Self::NodePortHere => HERE_FIRST_SLOT,
        }
    }

    /// Whether its frontend has an address.
    pub fn has_address(self) -> bool {
        matches!(self, Self::Service | Self::ServiceHere)
    }

    /// The set of its endpoints, for session affinity.
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

/// What happens to a new connection to a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// It goes to one of N slots, 1 to [`BACKENDS_MAX`].
    Balance(EndpointPool, Choice, u32),
    /// It is rejected: there are no endpoints.
    Reject,
    /// It is dropped: the traffic policy allows none of the endpoints.
    Drop,
}

impl Class {
    /// The class for `count` slots; `otherwise` if `count` is 0.
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

    /// The class as a word: two bits for the endpoint pool, fifteen for the choice, fifteen for the number of slots
    /// minus one.
    pub fn word(self) -> u32 {
        match self {
            Self::Balance(draw, choice, count) => {
                draw.index() << 30 | choice.code() << 15 | (count.saturating_sub(1) & 0x7fff)
            }
            Self::Reject => 0xffff_0001,
            Self::Drop => 0xffff_0002,
        }
    }

    /// Decodes a word.
    pub fn from_word(word: u32) -> Option<Self> {
        match word {
            0xffff_0001 => Some(Self::Reject),
            0xffff_0002 => Some(Self::Drop),
            _ => {
                let draw = *EndpointPool::ALL.get(usize::try_from(word >> 30).ok()?)?;
                let choice = Choice::from_code(word >> 15 & 0x7fff)?;
                Some(Self::Balance(draw, choice, (word & 0x7fff).saturating_add(1)))
            }
        }
    }

    /// Key in the class map.
    pub fn key(self) -> Value {
        Value::from(self.word().to_ne_bytes())
    }

    /// Data of the frontend maps: two words, the second is the class. The first is padding: `nft` up to 1.0.6 fails an
    /// assertion when it lists a rule whose key is in the first register of another lookup's data.
    pub fn data(self) -> Value {
        Value::concat(&[&[0; 4], &self.word().to_ne_bytes()])
    }

    /// Decodes data of the frontend maps.
    pub fn from_data(data: &[u8]) -> Option<Self> {
        Self::from_word(u32::from_ne_bytes(data.get(4..)?.try_into().ok()?))
    }

    /// The name of its chain, if it has one.
    pub fn chain(self) -> Option<String> {
        let Self::Balance(draw, choice, count) = self else { return None };
        let prefix = draw.prefix();
        Some(match choice {
            Choice::Random => format!("{prefix}{count}"),
            Choice::Consistent => format!("consistent-{prefix}{count}"),
            Choice::Sticky(seconds) => format!("sticky-{seconds}-{prefix}{count}"),
        })
    }

    /// Its verdict in the class map.
    pub fn verdict(self) -> Verdict {
        match (self.chain(), self) {
            (Some(chain), _) => Verdict::Goto(chain),
            (None, Self::Drop) => Verdict::Drop,
            (None, _) => Verdict::Goto(REJECT.to_owned()),
        }
    }

    /// Its element in the class map.
    pub fn element(self) -> Element {
        Element::entry(self.key(), Data::Verdict(self.verdict()))
    }
}
