//! Values of registers and set elements: bytes in packet order, or a verdict.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};

/// Bytes that fit [`Value`] without an allocation.
const INLINE: usize = 30;

/// The bytes of a register, a key or the data of a map element.
///
/// The proxy's keys have at most 28 bytes (an IPv6 address and three words), so nearly every value is inline; a table
/// of 400,000 elements is one allocation, not 800,000.
#[derive(Clone)]
pub struct Value(Repr);

#[derive(Clone)]
enum Repr {
    Inline { len: u8, bytes: [u8; INLINE] },
    Heap(Box<[u8]>),
}

impl Value {
    /// Copies the bytes.
    pub fn new(from: &[u8]) -> Self {
        let mut bytes = [0; INLINE];
        match (bytes.get_mut(..from.len()), u8::try_from(from.len())) {
            (Some(inline), Ok(len)) => {
                inline.copy_from_slice(from);
                Self(Repr::Inline { len, bytes })
            }
            _ => Self(Repr::Heap(from.into())),
        }
    }

    /// A concatenation: each part is padded to whole 32-bit registers.
    pub fn concat(parts: &[&[u8]]) -> Self {
        let aligned = |part: &[u8]| part.len().div_ceil(4).saturating_mul(4);
        let len: usize = parts.iter().map(|part| aligned(part)).sum();
        // Built in place: there are hundreds of thousands of keys.
        let (mut inline, mut heap) = ([0; INLINE], Vec::new());
        let bytes = match inline.get_mut(..len) {
            Some(bytes) => bytes,
            None => {
                heap.resize(len, 0);
                &mut heap[..]
            }
        };
        let mut rest = bytes;
        for part in parts {
            let (field, after) = rest.split_at_mut(aligned(part));
            field.iter_mut().zip(*part).for_each(|(to, from)| *to = *from);
            rest = after;
        }
        match u8::try_from(len) {
            Ok(len) if heap.is_empty() => Self(Repr::Inline { len, bytes: inline }),
            _ => Self(Repr::Heap(heap.into())),
        }
    }

    /// The bytes that the kernel compares; addresses and ports are in network byte order.
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or_default(),
            Repr::Heap(bytes) => bytes,
        }
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Value {}

impl PartialOrd for Value {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Value {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.bytes().cmp(other.bytes())
    }
}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes().hash(state);
    }
}

impl Borrow<[u8]> for Value {
    fn borrow(&self) -> &[u8] {
        self.bytes()
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl<const N: usize> From<[u8; N]> for Value {
    fn from(bytes: [u8; N]) -> Self {
        Self::new(&bytes)
    }
}

/// A register, as the index of a 32-bit word from 0 to 15.
///
/// The kernel has two numberings of the same memory, four registers of 16 bytes (1 to 4) and sixteen of 4 bytes (8 to
/// 23); decoding accepts both, encoding prefers the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg(u8);

impl Reg {
    /// Number of words.
    pub const COUNT: usize = 16;

    /// The word at `index`, which is taken modulo 16.
    pub const fn word(index: u8) -> Self {
        Self(index % 16)
    }

    /// Its index in words.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The register `words` further on.
    pub const fn plus(self, words: u8) -> Self {
        Self::word(self.0.wrapping_add(words))
    }

    /// The kernel's number.
    pub fn number(self) -> u32 {
        // The 16-byte numbering where it exists, which older releases of `nft` expect.
        let index = u32::from(self.0);
        if index % 4 == 0 { (index / 4).saturating_add(1) } else { index.saturating_add(8) }
    }

    /// The register with this number; 0 is the verdict register.
    pub fn from_number(number: u32) -> Option<Self> {
        let index = match number {
            1..=4 => number.saturating_sub(1).saturating_mul(4),
            8..=23 => number.saturating_sub(8),
            _ => return None,
        };
        u8::try_from(index).ok().map(Self)
    }
}

/// What happens to a packet: accept, drop, or continue in another chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// The packet continues at the next hook.
    Accept,
    /// The packet is dropped.
    Drop,
    /// The next rule follows.
    Continue,
    /// The rule ends, the next one follows.
    Break,
    /// Continues in the chain, then returns.
    Jump(String),
    /// Continues in the chain.
    Goto(String),
    /// Returns to the calling chain.
    Return,
}

impl Verdict {
    /// The kernel's code (`enum nft_verdicts`, `NF_DROP`, `NF_ACCEPT`).
    pub fn code(&self) -> i32 {
        match self {
            Self::Drop => 0,
            Self::Accept => 1,
            Self::Continue => -1,
            Self::Break => -2,
            Self::Jump(_) => -3,
            Self::Goto(_) => -4,
            Self::Return => -5,
        }
    }

    /// The target of a jump or goto.
    pub fn chain(&self) -> Option<&str> {
        match self {
            Self::Jump(chain) | Self::Goto(chain) => Some(chain),
            _ => None,
        }
    }

    /// The verdict with this code and chain, if it exists.
    pub fn from_code(code: i32, chain: Option<String>) -> Option<Self> {
        match (code, chain) {
            (0, None) => Some(Self::Drop),
            (1, None) => Some(Self::Accept),
            (-1, None) => Some(Self::Continue),
            (-2, None) => Some(Self::Break),
            (-3, Some(chain)) => Some(Self::Jump(chain)),
            (-4, Some(chain)) => Some(Self::Goto(chain)),
            (-5, None) => Some(Self::Return),
            _ => None,
        }
    }
}

/// Data of an immediate expression or of a map.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Data {
    /// Bytes for a register.
    Value(Value),
    /// A decision.
    Verdict(Verdict),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_compare_by_bytes_inline_or_not() {
        let short = Value::new(&[1, 2, 3]);
        assert_eq!(short.bytes(), [1, 2, 3]);
        assert_eq!(format!("{short:?}"), "010203");
        let long = Value::new(&[7; 64]);
        assert_eq!((long.bytes().len(), long.clone() == long), (64, true));
        assert!(short < long);
        assert_eq!(std::mem::size_of::<Value>(), 32);
    }

    #[test]
    fn parts_of_a_key_start_on_whole_registers() {
        let key = Value::concat(&[&[10, 0, 0, 1], &[6], &[0, 80]]);
        assert_eq!(key.bytes(), [10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0]);
        let long = Value::concat(&[&[1; 16], &[2; 17]]);
        assert_eq!(long, Value::new(&[&[1; 16][..], &[2; 17], &[0; 3]].concat()));
    }

    #[test]
    fn both_register_numberings_name_the_same_words() {
        assert_eq!(Reg::from_number(2), Some(Reg::word(4)));
        assert_eq!(Reg::from_number(12), Some(Reg::word(4)));
        assert_eq!((Reg::word(4).number(), Reg::word(5).number()), (2, 13));
        assert_eq!((Reg::from_number(0), Reg::from_number(24)), (None, None));
    }
}
