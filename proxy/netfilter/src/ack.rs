//! Acknowledgements: success, or an error number and often a message.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use crate::wire::{Attributes, HEADER_LEN, Message, WireError};

/// `NLM_F_ACK_TLVS`: attributes follow the header of the original message.
const WITH_ATTRIBUTES: u16 = 0x200;
/// `NLMSGERR_ATTR_MSG`: the error message.
const TEXT: u16 = 1;

/// Error numbers that callers handle (`asm-generic/errno.h`).
pub mod errno {
    /// Not allowed: the table belongs to another socket.
    pub const EPERM: i32 = 1;
    /// No such object.
    pub const ENOENT: i32 = 2;
    /// Object is in use.
    pub const EBUSY: i32 = 16;
    /// Object exists already.
    pub const EEXIST: i32 = 17;
    /// Malformed.
    pub const EINVAL: i32 = 22;
    /// Set is full.
    pub const ENFILE: i32 = 23;
    /// Not supported.
    pub const EOPNOTSUPP: i32 = 95;
    /// No such address family.
    pub const EAFNOSUPPORT: i32 = 97;
    /// The ruleset is not at the expected generation.
    pub const ERESTART: i32 = 85;
}

/// The acknowledgement of the message with the same sequence number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// 0 for success, else the error number.
    pub errno: i32,
    /// The error message, if there is one.
    pub text: Option<String>,
}

impl Ack {
    /// Decodes an `NLMSG_ERROR` message of a socket with `NETLINK_CAP_ACK`.
    pub fn read(message: &Message<'_>) -> Result<Self, WireError> {
        let what = "acknowledgement";
        let (number, rest) = message
            .payload
            .split_first_chunk::<4>()
            .ok_or(WireError::Truncated { what, need: 4, have: message.payload.len() })?;
        let errno = i32::from_ne_bytes(*number).checked_neg().ok_or(WireError::Value { what })?;
        let mut text = None;
        if message.flags & WITH_ATTRIBUTES != 0 {
            for attribute in Attributes::new(rest.get(HEADER_LEN..).unwrap_or_default()) {
                let attribute = attribute?;
                if attribute.kind == TEXT {
                    text = Some(attribute.name("error text")?.to_owned());
                }
            }
        }
        Ok(Self { errno, text })
    }

    /// Decodes an `NLMSG_DONE` message: the error number with which a dump ended, 0 for none. After an error the dump
    /// is incomplete. Kernels before 4.14 send none.
    pub fn read_done(message: &Message<'_>) -> Result<i32, WireError> {
        let Some((number, _)) = message.payload.split_first_chunk::<4>() else { return Ok(0) };
        let what = "end of a dump";
        let errno = i32::from_ne_bytes(*number).checked_neg().ok_or(WireError::Value { what })?;
        Ok(errno.max(0))
    }

    /// Encodes an acknowledgement, for the fake kernel.
    pub(crate) fn write(errno: i32, seq: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(36);
        bytes.extend_from_slice(&36u32.to_ne_bytes());
        bytes.extend_from_slice(&crate::wire::NLMSG_ERROR.to_ne_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(&seq.to_ne_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&errno.saturating_neg().to_ne_bytes());
        bytes.extend_from_slice(&[0; HEADER_LEN]);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Messages;

    #[test]
    fn an_error_comes_with_its_number_and_sentence() {
        let mut payload = (-17i32).to_ne_bytes().to_vec();
        payload.extend_from_slice(&[0; HEADER_LEN]);
        payload.extend_from_slice(&[9, 0, 1, 0, b'f', b'u', b'l', b'l', 0, 0, 0, 0]);
        let message = Message { kind: 2, flags: WITH_ATTRIBUTES, seq: 4, payload: &payload };
        assert_eq!(Ack::read(&message), Ok(Ack { errno: 17, text: Some("full".into()) }));
        let plain = Message { flags: 0, ..message };
        assert_eq!(Ack::read(&plain), Ok(Ack { errno: 17, text: None }));
        let cut = Message { payload: &[1, 2], ..message };
        assert!(Ack::read(&cut).is_err());
    }

    #[test]
    fn acks_of_the_fake_kernel_are_read_back() {
        let bytes = Ack::write(errno::ENOENT, 5);
        let message = Messages::new(&bytes).next().unwrap().unwrap();
        assert_eq!((message.seq, Ack::read(&message)), (5, Ok(Ack { errno: 2, text: None })));
    }
}
