//! Types of keys and data for `nft list`. The kernel stores the number and compares lengths only.

/// A field of a key or of map data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Verdict,
    /// `ipv4_addr`.
    Ipv4,
    /// `ipv6_addr`.
    Ipv6,
    /// `inet_proto`: number of a transport protocol.
    Proto,
    /// `inet_service`: port in network order.
    Port,
    /// `mark`: a 32-bit number in host order.
    Mark,
}

/// `NFT_DATA_VERDICT`: the data type of verdict maps.
pub const DATA_TYPE_VERDICT: u32 = 0xffff_ff00;
/// Bits per field in the number of a concatenated type.
const CONCAT_BITS: u32 = 6;

impl Type {
    /// The number in nft (`enum datatypes`).
    pub fn number(self) -> u32 {
        match self {
            Self::Verdict => 1,
            Self::Ipv4 => 7,
            Self::Ipv6 => 8,
            Self::Proto => 12,
            Self::Port => 13,
            Self::Mark => 19,
        }
    }

    /// Length in bytes of a single value.
    pub fn bytes(self) -> u32 {
        match self {
            Self::Verdict => 16,
            Self::Ipv4 | Self::Mark => 4,
            Self::Ipv6 => 16,
            Self::Proto => 1,
            Self::Port => 2,
        }
    }

    /// Whether it is in host byte order.
    pub fn host_order(self) -> bool {
        matches!(self, Self::Mark)
    }
}

/// Number of a type of several fields.
pub fn concat_number(fields: &[Type]) -> u32 {
    fields.iter().fold(0, |number, field| number << CONCAT_BITS | field.number())
}

/// Length in bytes of a concatenation: each field takes whole registers, a single one only what it needs.
pub fn concat_len(fields: &[Type]) -> u32 {
    match fields {
        [single] => single.bytes(),
        _ => fields.iter().map(|field| field.bytes().div_ceil(4).saturating_mul(4)).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_key_has_the_number_and_length_that_nft_gives_it() {
        let key = [Type::Ipv4, Type::Proto, Type::Port];
        assert_eq!((concat_number(&key), concat_len(&key)), ((7 << 12) | (12 << 6) | 13, 12));
        assert_eq!(concat_len(&[Type::Ipv6, Type::Proto, Type::Port, Type::Mark]), 28);
        assert_eq!(concat_len(&[Type::Port]), 2);
    }
}
