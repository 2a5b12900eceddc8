//! Reader of the Protobuf wire format: keys, varints and lengths.

/// Why bytes are not valid in the wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The bytes end inside a field.
    #[error("unexpected end of the message, inside a field")]
    Truncated,
    /// A varint is longer than ten bytes.
    #[error("varint too long")]
    Varint,
    /// Invalid wire type or field number.
    #[error("illegal field key {0}")]
    Key(u64),
}

/// Value of a field on the wire.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum WireValue<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// Reads fields from the front of a slice.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    /// The next field: number and value; `None` at the end.
    pub(crate) fn field(&mut self) -> Result<Option<(u32, WireValue<'a>)>, FormatError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let number = match u32::try_from(key >> 3) {
            Ok(number @ 1..=0x1fff_ffff) => number,
            _ => return Err(FormatError::Key(key)),
        };
        let value = match key & 7 {
            0 => WireValue::Varint(self.varint()?),
            1 => WireValue::Fixed64(u64::from_le_bytes(self.fixed()?)),
            2 => {
                let len = self.varint()?;
                let len = usize::try_from(len).map_err(|_| FormatError::Truncated)?;
                WireValue::Bytes(self.take_bytes(len)?)
            }
            5 => WireValue::Fixed32(u32::from_le_bytes(self.fixed()?)),
            _ => return Err(FormatError::Key(key)),
        };
        Ok(Some((number, value)))
    }

    /// The next varint.
    pub(crate) fn varint(&mut self) -> Result<u64, FormatError> {
        let mut value = 0u64;
        for (at, &byte) in self.0.iter().enumerate().take(10) {
            // Ten bytes at most, so the shift is below 64.
            value |= u64::from(byte & 0x7f)
                .unbounded_shl(u32::try_from(at).unwrap_or(9).saturating_mul(7));
            if byte < 0x80 {
                self.0 = self.0.get(at.saturating_add(1)..).unwrap_or_default();
                return Ok(value);
            }
        }
        Err(if self.0.len() < 10 { FormatError::Truncated } else { FormatError::Varint })
    }

    fn take_bytes(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(FormatError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(FormatError::Truncated)?;
        self.0 = rest;
        Ok(*taken)
    }
}
