//! How traffic of the cluster's pods is detected (`--detect-local-mode`).

use std::fmt;

use super::Cidr;

/// How traffic of pods is detected. Other traffic is masqueraded on its way to cluster IPs, and is subject to
/// `externalTrafficPolicy: Local`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LocalTraffic {
    /// By the cluster CIDRs (`ClusterCIDR`).
    #[default]
    Cluster,
    /// By the pod CIDRs of this node (`NodeCIDR`).
    Blocks(Vec<Cidr>),
    /// By the name of the incoming interface (`BridgeInterface`).
    Interface(InterfaceName),
    /// By the prefix of the incoming interface's name (`InterfaceNamePrefix`).
    InterfacePrefix(InterfaceName),
}

/// Name of an interface, or a prefix: 1 to 15 bytes, none of them zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InterfaceName([u8; Self::LEN]);

impl InterfaceName {
    /// `IFNAMSIZ`: with the zero at the end.
    pub const LEN: usize = 16;

    /// `None` if the text is empty or too long.
    pub fn new(text: &str) -> Option<Self> {
        let mut bytes = [0; Self::LEN];
        let fits = !text.is_empty() && text.len() < Self::LEN && !text.contains('\0');
        bytes.get_mut(..text.len()).filter(|_| fits)?.copy_from_slice(text.as_bytes());
        Some(Self(bytes))
    }

    /// Padded with zeros, as the kernel compares whole names.
    pub fn padded(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// Without padding.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}

impl fmt::Debug for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_one_to_fifteen_bytes() {
        let name = InterfaceName::new("cbr0").unwrap();
        assert_eq!((name.as_bytes(), name.to_string().as_str()), (&b"cbr0"[..], "cbr0"));
        assert_eq!(name.padded(), b"cbr0\0\0\0\0\0\0\0\0\0\0\0\0");
        let longest = "a".repeat(15);
        assert_eq!(InterfaceName::new(&longest).unwrap().to_string(), longest);
        for text in ["", "a\0b", "sixteen-bytes-xx"] {
            assert_eq!(InterfaceName::new(text), None, "{text:?}");
        }
    }
}
